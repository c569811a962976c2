"""Makes models of other libraries use this package's kernels: the public class, the table of targets, the adapters."""
