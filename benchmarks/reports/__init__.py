"""The measurements as tables and pages."""
