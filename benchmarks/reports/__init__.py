"""The measurements as tables, pages and plots."""
