"""Raw extracts as streams of events: plain tables, OMOP and MIMIC-IV folders, FHIR R4."""
