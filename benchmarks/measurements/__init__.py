"""What is measured or counted: problems of each operator, and their times, memory and exchanges."""
