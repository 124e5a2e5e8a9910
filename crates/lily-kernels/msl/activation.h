// ACT, the type of activations, is given by whoever compiles: float, bfloat or half.
#pragma once
#ifndef ACT
#define ACT bfloat
#endif
