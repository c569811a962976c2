"""Problems of each operator, and what several commands measure or count: times, memory, costs of kernels."""
