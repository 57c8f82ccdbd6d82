"""Admission: the only place that builds a Budget or an AdmittedRequest."""
