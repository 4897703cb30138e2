"""Texts and rows from files and from memory."""
