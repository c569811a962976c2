#include "../execution.h"
