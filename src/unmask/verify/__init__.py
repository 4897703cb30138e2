"""The figures of the pages, remade: `unmask verify`."""
