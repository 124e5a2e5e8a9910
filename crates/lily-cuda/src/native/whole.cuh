#define WHOLE 1
