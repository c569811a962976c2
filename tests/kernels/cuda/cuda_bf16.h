#pragma once

#include "cpu/element.h"

using __nv_bfloat16 = dcn::BF16;
