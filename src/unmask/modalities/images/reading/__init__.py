"""Pictures from folders, tables, arrays and shards, and how they are split."""
