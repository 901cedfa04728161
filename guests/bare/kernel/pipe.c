/* Pipes: a ring of pages that are filled and emptied by copies, as Linux has them since 2.6.11; and the table of open files. */
#include "kernel.h"

enum { PIPE_PAGES = 16, ATOMIC_WRITE = PAGE_SIZE };

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
struct file_operations {
    long (*read)(struct file *file, char *buffer, size_t count);
    long (*write)(struct file *file, const char *buffer, size_t count);
    long (*poll)(struct file *file);
    void (*release)(struct file *file);
};
struct file {
    const struct file_operations *operations;
    unsigned references;
    struct pipe *pipe;
};

static struct cache file_cache = {.size = sizeof(struct file)};
static struct cache pipe_cache = {.size = sizeof(struct pipe)};

/* One processor and no preemption: a lock is never found taken, unless by a mistake. */
static void lock(struct pipe *pipe) {
    if (__atomic_exchange_n(&pipe->locked, 1, __ATOMIC_ACQUIRE))
        panic("a pipe is locked");
}
static void unlock(struct pipe *pipe) { __atomic_store_n(&pipe->locked, 0, __ATOMIC_SEQ_CST); }

/* Sleeps without the lock until something happens to the pipe. */
static void pipe_wait(struct pipe *pipe) {
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    wait_prepare(&pipe->wait, &waiter, SLEEPING);
    unlock(pipe);
    schedule();
    wait_finish(&waiter);
    lock(pipe);
}

static long pipe_read(struct file *file, char *buffer, size_t count) {
    struct pipe *pipe = file->pipe;
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
    struct pipe *pipe = file->pipe;
    long done = 0;
    int wake = 0;
    lock(pipe);
    while (count) {
        if (!pipe->readers) {
            done = done ? done : -EPIPE;
            break;
        }
        struct pipe_page *last = &pipe->pages[(pipe->first + pipe->used - 1) % PIPE_PAGES];
        /* Behind what the last page has, if it fits there in one piece. */
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
    struct pipe *pipe = file->pipe;
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
    file->pipe->readers--;
    release_end(file->pipe);
}
static void release_writer(struct file *file) {
    file->pipe->writers--;
    release_end(file->pipe);
}

static long console_file_write(struct file *file, const char *buffer, size_t count) {
    (void)file;
    console_write(buffer, count);
    return (long)count;
}

/* Tables of functions: constant, hence protected in W^X mode. */
static const struct file_operations reader_operations = {.read = pipe_read, .poll = pipe_poll, .release = release_reader};
static const struct file_operations writer_operations = {.write = pipe_write, .release = release_writer};
static const struct file_operations console_operations = {.write = console_file_write};
static struct file console = {.operations = &console_operations, .references = 1};

static int install(struct file *file) {
    for (int descriptor = 2; descriptor < FILES; descriptor++)
        if (!current->files[descriptor]) {
            current->files[descriptor] = file;
            return descriptor;
        }
    return -EMFILE;
}

static struct file *file_of(int descriptor) {
    if (descriptor == 1)
        return &console;
    return descriptor >= 0 && descriptor < FILES ? current->files[descriptor] : NULL;
}

static void put_file(struct file *file) {
    if (--file->references)
        return;
    file->operations->release(file);
    cache_free(&file_cache, file);
}

static struct file *open_end(struct pipe *pipe, const struct file_operations *operations) {
    struct file *file = cache_alloc(&file_cache);
    *file = (struct file){.operations = operations, .references = 1, .pipe = pipe};
    return file;
}

long pipe_create(unsigned long ends) {
    if (!user_range(ends, 2 * sizeof(int), 1))
        return -EFAULT;
    struct pipe *pipe = cache_alloc(&pipe_cache);
    memset(pipe, 0, sizeof *pipe);
    list_init(&pipe->wait.waiters);
    pipe->readers = pipe->writers = 1;
    struct file *reader = open_end(pipe, &reader_operations), *writer = open_end(pipe, &writer_operations);
    int first = install(reader), second = first < 0 ? first : install(writer);
    if (second < 0) {
        if (first >= 0)
            current->files[first] = NULL;
        put_file(reader);
        put_file(writer);
        return second;
    }
    ((int *)ends)[0] = first;
    ((int *)ends)[1] = second;
    return 0;
}

long file_read(int descriptor, unsigned long buffer, unsigned long count) {
    struct file *file = file_of(descriptor);
    if (!file || !file->operations->read)
        return -EBADF;
    if (!user_range(buffer, count, 1))
        return -EFAULT;
    return file->operations->read(file, (char *)buffer, count);
}

long file_write(int descriptor, unsigned long buffer, unsigned long count) {
    struct file *file = file_of(descriptor);
    if (!file || !file->operations->write)
        return -EBADF;
    if (!user_range(buffer, count, 0))
        return -EFAULT;
    return file->operations->write(file, (const char *)buffer, count);
}

long file_poll(int descriptor) {
    struct file *file = file_of(descriptor);
    return file && file->operations->poll ? file->operations->poll(file) : -EBADF;
}

long file_close(int descriptor) {
    struct file *file = descriptor >= 0 && descriptor < FILES ? current->files[descriptor] : NULL;
    if (!file)
        return -EBADF;
    current->files[descriptor] = NULL;
    put_file(file);
    return 0;
}

void files_copy(struct task *to, const struct task *from) {
    for (int descriptor = 0; descriptor < FILES; descriptor++) {
        to->files[descriptor] = from->files[descriptor];
        if (to->files[descriptor])
            to->files[descriptor]->references++;
    }
}

void files_close(struct task *task) {
    for (int descriptor = 0; descriptor < FILES; descriptor++)
        if (task->files[descriptor])
            file_close(descriptor);
}
