/* The C library of stack_shapes.py: functions that call each other, run, ask the kernel, and wait. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Asked without the C library, whose functions keep no frame pointers: the chain goes on through this one. */
#if defined(__x86_64__)
static inline long ask(long file, void *room, long size)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_read), "D"(file), "S"(room), "d"(size) : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static inline long ask(long file, void *room, long size)
{
	register long number __asm__("x8") = SYS_read;
	register long result __asm__("x0") = file;
	register void *to __asm__("x1") = room;
	register long bytes __asm__("x2") = size;

	__asm__ volatile("svc 0" : "+r"(result) : "r"(number), "r"(to), "r"(bytes) : "memory");
	return result;
}
#else
#define ask read
#endif

static long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((noinline)) long shape_inner(long end_ns)
{
	volatile long total = 0;

	do
		for (int i = 0; i < 100000; i++)
			total += i;
	while (now_ns() < end_ns);
	return total;
}

__attribute__((noinline)) long shape_middle(long end_ns)
{
	return shape_inner(end_ns) + 1;
}

__attribute__((noinline)) long shape_outer(long end_ns)
{
	return shape_middle(end_ns) + 1;
}

/* Writing 32 MiB keeps the kernel busy for more than a millisecond: looking at the clock between two calls is less than
   a ten-thousandth of that. With 1 MiB it was a two-hundredth, and a sample in it is right not to show the kernel. */
__attribute__((noinline)) long shape_ask(long end_ns)
{
	static char room[1 << 25];
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	long total = 0;

	do
		total += ask(zero, room, sizeof(room));
	while (now_ns() < end_ns);
	close(zero);
	return total;
}

__attribute__((noinline)) long shape_pause(long wait_ns)
{
	struct timespec wait = {wait_ns / 1000000000L, wait_ns % 1000000000L};

	return nanosleep(&wait, 0) + 1;
}
