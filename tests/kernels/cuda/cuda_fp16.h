#pragma once

#include "cpu/element.h"

using __half = dcn::F16;
