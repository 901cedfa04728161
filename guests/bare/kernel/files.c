/* Open files: a table of descriptors per task, with the console as descriptor 1. */
#include "kernel.h"

static struct cache file_cache = {.size = sizeof(struct file)};

static long console_file_write(struct file *file, const char *buffer, size_t count) {
    (void)file;
    console_write(buffer, count);
    return (long)count;
}

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

struct file *file_create(const struct file_operations *operations, void *private) {
    struct file *file = cache_alloc(&file_cache);
    *file = (struct file){operations, 1, private};
    return file;
}

/* Gives descriptors to two files, or to neither. */
long file_install_pair(struct file *one, struct file *other, int descriptors[2]) {
    int first = install(one), second = first < 0 ? first : install(other);
    if (second < 0) {
        if (first >= 0)
            current->files[first] = NULL;
        put_file(one);
        put_file(other);
        return second;
    }
    descriptors[0] = first;
    descriptors[1] = second;
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
