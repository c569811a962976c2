"""Programs that use jax_dcn on real tasks."""
