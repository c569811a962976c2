"""Read compiled programs, the built module, test results, the machine and the memory of a call; tests use them too."""
