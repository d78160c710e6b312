/* Functions that wait in each other, for a stack that is unwound; the innermost asks the kernel through the C library. */
#include <time.h>

__attribute__((noinline)) int wait_inner(int seconds)
{
	struct timespec left = {seconds, 0};

	return nanosleep(&left, &left) + 1;
}

__attribute__((noinline)) int wait_middle(int seconds)
{
	volatile char room[4096];

	room[0] = (char)seconds;
	return wait_inner(seconds) + room[0];
}

__attribute__((noinline)) int wait_outer(int seconds)
{
	return wait_middle(seconds) + 1;
}
