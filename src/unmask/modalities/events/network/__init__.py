"""The encoder of events, its codec, its clock, and prepared histories."""
