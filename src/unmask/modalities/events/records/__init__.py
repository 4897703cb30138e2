"""MEDS: histories of patients, codes, visits, splits."""
