"""Problems of each operator, and what several commands measure or count: times and memory."""
