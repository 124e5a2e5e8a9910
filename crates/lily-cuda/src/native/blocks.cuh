#define WHOLE 0
