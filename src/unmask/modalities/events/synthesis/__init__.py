"""New patients: a generator learnt from records, what is drawn from it, and how that compares with real records."""
