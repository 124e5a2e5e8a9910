// Attention of many rows, on tiles or, in f32, without.
#pragma once
#include "flash.h"
#ifdef ACT_IS_F32
#include "flash_plain.h"
typedef float FlashUnit;
#else
#include "flash_tiles.h"
typedef ACT FlashUnit;
#endif
