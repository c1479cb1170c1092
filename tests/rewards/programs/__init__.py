"""Tests of the grader of whole programs."""
