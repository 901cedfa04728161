/* Pipes: a ring of pages that are filled and emptied by copies, as in Linux since 2.6.11. */
#include "kernel.h"

enum { PIPE_PAGES = 16 };

struct pipe_page {
    phys_t page;
    unsigned offset, length;
};
struct pipe {
    int locked;
    unsigned first, used;
    unsigned readers, writers;
    phys_t spare; /* the page freed last, likely still in the cache */
    struct wait_queue wait;
    struct pipe_page pages[PIPE_PAGES];
};
static struct cache pipe_cache = {.size = sizeof(struct pipe)};

/* With one processor and no preemption, a lock that is already taken is a mistake. */
static void lock(struct pipe *pipe) {
    if (__atomic_exchange_n(&pipe->locked, 1, __ATOMIC_ACQUIRE))
        panic("a pipe is locked");
}
static void unlock(struct pipe *pipe) { __atomic_store_n(&pipe->locked, 0, __ATOMIC_SEQ_CST); }

/* Sleeps without the lock until the pipe changes. */
static void pipe_wait(struct pipe *pipe) {
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    wait_prepare(&pipe->wait, &waiter, SLEEPING);
    current->sleep_kind = SLEEP_NONINTERACTIVE; /* as for pipes in 2.6: no credit beyond the limit */
    unlock(pipe);
    schedule();
    wait_finish(&waiter);
    lock(pipe);
}

static long pipe_read(struct file *file, char *buffer, size_t count) {
    struct pipe *pipe = file->private;
    long done = 0;
    int wake = 0;
    lock(pipe);
    while (count) {
        if (pipe->used) {
            struct pipe_page *page = &pipe->pages[pipe->first];
            size_t part = page->length < count ? page->length : count;
            memcpy(buffer, (char *)to_virtual(page->page) + page->offset, part);
            buffer += part;
            done += (long)part;
            count -= part;
            page->offset += (unsigned)part;
            page->length -= (unsigned)part;
            if (!page->length) {
                if (pipe->spare)
                    page_put(page->page);
                else
                    pipe->spare = page->page;
                pipe->first = (pipe->first + 1) % PIPE_PAGES;
                pipe->used--;
                wake = 1;
            }
            continue;
        }
        if (done || !pipe->writers)
            break;
        if (current->pending) {
            done = -EINTR;
            break;
        }
        if (wake) {
            wake_up(&pipe->wait, 1);
            wake = 0;
        }
        pipe_wait(pipe);
    }
    unlock(pipe);
    if (wake)
        wake_up(&pipe->wait, 0);
    return done;
}

static long pipe_write(struct file *file, const char *buffer, size_t count) {
    struct pipe *pipe = file->private;
    long done = 0;
    int wake = 0;
    lock(pipe);
    while (count) {
        if (!pipe->readers) {
            done = done ? done : -EPIPE;
            break;
        }
        struct pipe_page *last = &pipe->pages[(pipe->first + pipe->used - 1) % PIPE_PAGES];
        /* The data goes behind the last page's data if it fits there in one piece. */
        if (pipe->used && last->offset + last->length + count <= PAGE_SIZE) {
            memcpy((char *)to_virtual(last->page) + last->offset + last->length, buffer, count);
            last->length += (unsigned)count;
            done += (long)count;
            wake = 1;
            break;
        }
        if (pipe->used < PIPE_PAGES) {
            struct pipe_page *page = &pipe->pages[(pipe->first + pipe->used) % PIPE_PAGES];
            size_t part = count < PAGE_SIZE ? count : PAGE_SIZE;
            page->page = pipe->spare ? pipe->spare : page_alloc();
            pipe->spare = 0;
            page->offset = 0;
            page->length = (unsigned)part;
            memcpy(to_virtual(page->page), buffer, part);
            pipe->used++;
            buffer += part;
            count -= part;
            done += (long)part;
            wake = 1;
            continue;
        }
        if (current->pending) {
            done = done ? done : -EINTR;
            break;
        }
        if (wake) {
            wake_up(&pipe->wait, 1);
            wake = 0;
        }
        pipe_wait(pipe);
    }
    unlock(pipe);
    if (wake)
        wake_up(&pipe->wait, 0);
    return done;
}

/* Waits until there is something to read. */
static long pipe_poll(struct file *file) {
    struct pipe *pipe = file->private;
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    long result = 1;
    for (;;) {
        wait_prepare(&pipe->wait, &waiter, SLEEPING);
        if (pipe->used || !pipe->writers)
            break;
        if (current->pending) {
            result = -EINTR;
            break;
        }
        schedule();
    }
    wait_finish(&waiter);
    return result;
}

static void release_end(struct pipe *pipe) {
    if (pipe->readers || pipe->writers) {
        wake_up(&pipe->wait, 0);
        return;
    }
    for (; pipe->used; pipe->used--, pipe->first = (pipe->first + 1) % PIPE_PAGES)
        page_put(pipe->pages[pipe->first].page);
    if (pipe->spare)
        page_put(pipe->spare);
    cache_free(&pipe_cache, pipe);
}
static void release_reader(struct file *file) {
    struct pipe *pipe = file->private;
    pipe->readers--;
    release_end(pipe);
}
static void release_writer(struct file *file) {
    struct pipe *pipe = file->private;
    pipe->writers--;
    release_end(pipe);
}

/* These tables of functions are constant, hence protected in W^X mode. */
static const struct file_operations reader_operations = {.read = pipe_read, .poll = pipe_poll, .release = release_reader};
static const struct file_operations writer_operations = {.write = pipe_write, .release = release_writer};

long pipe_create(unsigned long ends) {
    if (!user_range(ends, 2 * sizeof(int), 1))
        return -EFAULT;
    struct pipe *pipe = cache_alloc(&pipe_cache);
    memset(pipe, 0, sizeof *pipe);
    list_init(&pipe->wait.waiters);
    pipe->readers = pipe->writers = 1;
    return file_install_pair(file_create(&reader_operations, pipe), file_create(&writer_operations, pipe), (int *)ends);
}
