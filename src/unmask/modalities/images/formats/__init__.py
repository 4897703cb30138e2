"""Formats of picture files, one reader each: pictures of everyday (Pillow), TIFF, DICOM, NIfTI, NumPy."""
