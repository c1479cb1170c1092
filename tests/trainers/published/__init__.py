"""Interfaces of trainers that are not on the package index, written down as they are published."""
