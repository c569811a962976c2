"""Linear sum assignment: pairs of rows and columns of least cost, one to one."""
