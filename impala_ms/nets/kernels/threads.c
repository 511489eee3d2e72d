/* Loops over images or rows of a batch, shared out among threads.

   Why not MindSpore's threads: a Custom operator is called on one thread and is not given the
   others. They wait spinning meanwhile and slow some of ours down, so that equal shares would wait
   for the slowest thread: a thread takes the next chunk as soon as it has finished one.

   In: the number of images and a function for a part of them. Out: 0, or the error of a part. */

#include "kernels.h"

#include <pthread.h>
#include <stdio.h>

#define MAX_THREADS 64

static int threads = 1;

/* Called from Python: the number of threads of all later calls. */
void set_threads(int number) {
    threads = number < 1 ? 1 : number > MAX_THREADS ? MAX_THREADS : number;
}

int thread_count(void) { return threads; }

typedef struct {
    loop_body body;
    const void *arguments;
    int64_t count, length;
    _Atomic int64_t next_chunk;
    _Atomic int error;
} loop;

static void *run_chunks(void *given) {
    loop *l = given;
    for (int64_t chunk; (chunk = l->next_chunk++) * l->length < l->count;) {
        const int64_t from = chunk * l->length, to = from + l->length;
        const int error = l->body(l->arguments, from, to < l->count ? to : l->count, chunk);
        if (error) l->error = error;
    }
    return NULL;
}

/* Where a thread cannot be started, the others take its chunks. */
int parallel_for(int64_t count, int64_t length, loop_body body, const void *arguments) {
    loop l = {body, arguments, count, length, 0, 0};
    pthread_t started[MAX_THREADS];
    int number = 0;
    while (number + 1 < threads && (number + 1) * length < count &&
           !pthread_create(&started[number], NULL, run_chunks, &l))
        number++;
    run_chunks(&l);
    while (number > 0) pthread_join(started[--number], NULL);
    return l.error;
}

/* Short enough that no thread waits for long, long enough that sharing costs nothing. */
int64_t short_chunk(int64_t count) { return count / (8 * threads) + 1; }

/* Sums of each chunk are added up in the order of the chunks, whichever thread made them: results
   do not change from call to call. */
int64_t chunk_per_thread(int64_t count) { return (count + threads - 1) / threads; }

int no_memory(void) {
    fputs("impala_ms: a kernel could not allocate memory\n", stderr);
    return ENOMEM;
}
