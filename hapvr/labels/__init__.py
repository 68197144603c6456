"""Labels without annotation: which clips share a source, and which frames a teacher calls alike."""
