/* Physical memory: pages with reference counts, pairs of pages for kernel stacks, and caches of equal objects. */
#include "kernel.h"

extern char image_end[];

struct page {
    unsigned references;
};

struct free_page {
    struct free_page *next;
};
struct free_object {
    struct free_object *next;
};

static struct page *pages;
static struct free_page *free_pages, *free_pairs;
static phys_t next_page, end_of_memory;
static unsigned free_count;
phys_t zero_page;

static struct page *page_of(phys_t address) { return &pages[address >> PAGE_SHIFT]; }

phys_t memory_end(void) { return end_of_memory; }
unsigned pages_free_count(void) { return free_count; }

/* Returns unused pages, which lie from next_page up. */
static phys_t fresh(unsigned count) {
    phys_t page = next_page;
    if (next_page + count * PAGE_SIZE > end_of_memory)
        panic("out of memory");
    next_page += count * PAGE_SIZE;
    return page;
}

void memory_start(phys_t end) {
    end_of_memory = end & PAGE_MASK;
    phys_t array = ((phys_t)image_end + PAGE_SIZE - 1) & PAGE_MASK;
    pages = to_virtual(array);
    size_t bytes = (end_of_memory >> PAGE_SHIFT) * sizeof *pages;
    next_page = (array + bytes + THREAD_SIZE - 1) & ~(phys_t)(THREAD_SIZE - 1);
    if (next_page >= end_of_memory)
        panic("too little memory");
    memset(pages, 0, bytes);
    /* The pages before belong to the image: they are always referenced and never freed. */
    for (phys_t page = 0; page < next_page; page += PAGE_SIZE)
        page_of(page)->references = 1;
    free_count = (unsigned)((end_of_memory - next_page) >> PAGE_SHIFT);
    zero_page = page_alloc_zeroed();
}

phys_t page_alloc(void) {
    unsigned long flags = interrupts_off();
    phys_t page;
    if (free_pages) {
        page = to_physical(free_pages);
        free_pages = free_pages->next;
    } else {
        page = fresh(1);
    }
    page_of(page)->references = 1;
    free_count--;
    interrupts_restore(flags);
    return page;
}

phys_t page_alloc_zeroed(void) {
    phys_t page = page_alloc();
    memset(to_virtual(page), 0, PAGE_SIZE);
    return page;
}

/* Allocates two pages at a boundary of two, for a kernel stack. */
phys_t pages_alloc_pair(void) {
    unsigned long flags = interrupts_off();
    phys_t page;
    if (free_pairs) {
        page = to_physical(free_pairs);
        free_pairs = free_pairs->next;
    } else {
        if (next_page % THREAD_SIZE) {
            struct free_page *odd = to_virtual(fresh(1));
            odd->next = free_pages;
            free_pages = odd;
        }
        page = fresh(2);
    }
    free_count -= 2;
    interrupts_restore(flags);
    return page;
}

void pages_free_pair(phys_t page) {
    unsigned long flags = interrupts_off();
    struct free_page *pair = to_virtual(page);
    pair->next = free_pairs;
    free_pairs = pair;
    free_count += 2;
    interrupts_restore(flags);
}

void page_get(phys_t page) { page_of(page)->references++; }

void page_put(phys_t page) {
    unsigned long flags = interrupts_off();
    if (!page_of(page)->references)
        panic("page %lx freed twice", page);
    if (--page_of(page)->references == 0) {
        struct free_page *freed = to_virtual(page);
        freed->next = free_pages;
        free_pages = freed;
        free_count++;
    }
    interrupts_restore(flags);
}

unsigned page_references(phys_t page) { return page_of(page)->references; }

void *cache_alloc(struct cache *cache) {
    unsigned long flags = interrupts_off();
    if (!cache->free) {
        char *page = to_virtual(page_alloc());
        for (size_t at = 0; at + cache->size <= PAGE_SIZE; at += cache->size) {
            struct free_object *object = (struct free_object *)(page + at);
            object->next = cache->free;
            cache->free = object;
        }
    }
    struct free_object *object = cache->free;
    cache->free = object->next;
    cache->used++;
    interrupts_restore(flags);
    return object;
}

void cache_free(struct cache *cache, void *object) {
    unsigned long flags = interrupts_off();
    struct free_object *freed = object;
    freed->next = cache->free;
    cache->free = freed;
    cache->used--;
    interrupts_restore(flags);
}
