"""Programs that use jax_dcn on real tasks."""

from examples.library.memory import keep_freed

keep_freed()  # here, because it must come before the first thread allocates memory, as those of NumPy do
