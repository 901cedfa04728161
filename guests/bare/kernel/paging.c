/* Address spaces: page tables of two, three or four levels, copies of them with copy-on-write, and the handling of
   page faults. */
#include "kernel.h"

extern char user_text_begin[], user_text_end[], user_data_end[], user_bss_end[], user_load[];

#ifdef __x86_64__
enum { LEVELS = 4, INDEX_BITS = 9 };
#elif defined(PAE)
enum { LEVELS = 3, INDEX_BITS = 9 };
#else
enum { LEVELS = 2, INDEX_BITS = 10 };
#endif
enum { TABLE_ENTRIES = 1 << INDEX_BITS };
#define ENTRY_ADDRESS(entry) ((phys_t)((entry) & 0xfffff000)) /* all memory lies below 4 GiB */
#define LARGE_SIZE (1ul << (PAGE_SHIFT + INDEX_BITS))
/* Entries of the top-level table: the number of user mode's, the first of the kernel, and the number of all. W^X
   mode gives the processor a table of its own, except with two levels, as in PaX. */
#ifdef __x86_64__
enum { TOP_USER = 8, TOP_KERNEL = 256, TOP_ENTRIES = 512, OWN_TOP = 1 };
#elif defined(PAE)
enum { TOP_USER = 3, TOP_KERNEL = 3, TOP_ENTRIES = 4, OWN_TOP = 1 };
#else
enum { TOP_USER = 768, TOP_KERNEL = 768, TOP_ENTRIES = 1024, OWN_TOP = 0 };
#endif
#define STACK_SIZE (16ul * PAGE_SIZE)

/* The kernel's own tables: their upper part is in every top-level table. In W^X mode the processor's own top-level
   table gets a copy of the running address space's lower part, and CR3 always holds that table. */
static entry_t *kernel_top;
PROTECTED static entry_t cpu_top[TOP_ENTRIES] ALIGNED(PAGE_SIZE);
static struct cache mm_cache = {.size = sizeof(struct mm)};

static unsigned index_of(unsigned long address, int level) {
    unsigned index = (unsigned)(address >> (PAGE_SHIFT + INDEX_BITS * (level - 1)));
    return index & (TABLE_ENTRIES - 1);
}

/* Sets a lowest-level entry. With PAE, the half with the present bit is written last when the entry appears. */
static inline void set_leaf(entry_t *entry, entry_t value) {
#ifdef PAE
    volatile uint32_t *half = (volatile uint32_t *)entry;
    half[1] = (uint32_t)(value >> 32);
    half[0] = (uint32_t)value;
#else
    *(volatile entry_t *)entry = value;
#endif
}

/* Sets an entry above the lowest level. In W^X mode each such write is to protected data, at any address. */
static void set_upper(entry_t *entry, entry_t value) {
    open_kernel();
    set_leaf(entry, value);
    close_kernel();
}

/* Returns the lowest-level entry of an address; without `create`, returns null if a table on the way is missing. */
static entry_t *find_leaf(entry_t *top, unsigned long address, int create) {
    entry_t *table = top;
    for (int level = LEVELS; level > 1; level--) {
        entry_t *entry = &table[index_of(address, level)];
        if (!(*entry & PAGE_PRESENT)) {
            if (!create)
                return NULL;
            set_upper(entry, page_alloc_zeroed() | PAGE_PRESENT | PAGE_WRITE | PAGE_USER | PAGE_ACCESSED);
        }
        table = to_virtual(ENTRY_ADDRESS(*entry));
    }
    return &table[index_of(address, 1)];
}

static unsigned long loaded_top; /* the value of CR3, so that a flush need not read it */

static void load_top(entry_t *top) {
    loaded_top = to_physical(top);
    if (paravirt)
        paravirt_write_cr3(loaded_top);
    else
        write_cr3(loaded_top);
}

void flush_tlb(void) {
    if (paravirt & PARAVIRT_FLUSH)
        paravirt_write_cr3(loaded_top);
    else
        write_cr3(read_cr3());
}

/* Maps all memory at PAGE_OFFSET: in large pages, or in single ones if `fine` is set. */
static void map_memory(int fine) {
    entry_t *top = to_virtual(page_alloc_zeroed());
    kernel_top = top;
#ifdef PAE
    for (unsigned i = 0; i < TOP_ENTRIES; i++)
        top[i] = page_alloc_zeroed() | PAGE_PRESENT;
#endif
    for (phys_t at = 0; at < memory_end(); at += LARGE_SIZE) {
        unsigned long address = PAGE_OFFSET + at;
        entry_t *table = top;
        for (int level = LEVELS; level > 2; level--) {
            entry_t *entry = &table[index_of(address, level)];
            if (!(*entry & PAGE_PRESENT))
                *entry = page_alloc_zeroed() | PAGE_PRESENT | PAGE_WRITE;
            table = to_virtual(ENTRY_ADDRESS(*entry));
        }
        entry_t flags = PAGE_PRESENT | PAGE_WRITE | PAGE_ACCESSED | PAGE_DIRTY | PAGE_GLOBAL;
        entry_t *entry = &table[index_of(address, 2)];
        *entry = at | flags | PAGE_LARGE;
        if (fine && at < (phys_t)user_load) {
            entry_t *leaves = to_virtual(page_alloc());
            for (unsigned i = 0; i < TABLE_ENTRIES; i++)
                leaves[i] = (at + i * PAGE_SIZE) | flags;
            *entry = to_physical(leaves) | PAGE_PRESENT | PAGE_WRITE | PAGE_ACCESSED;
        }
    }
}

/* Removes the right to write. */
static void protect_range(const char *begin, const char *end) {
    for (unsigned long address = (unsigned long)begin; address < (unsigned long)end; address += PAGE_SIZE)
        *find_leaf(kernel_top, address, 0) &= ~(entry_t)PAGE_WRITE;
}

void paging_start(void) {
    extern char text_begin[], text_end[], protected_begin[], protected_end[];
    map_memory(kernexec);
    if (kernexec) {
        protect_range(text_begin, text_end);
        memcpy(cpu_top, kernel_top, sizeof cpu_top);
        protect_range(protected_begin, protected_end);
    }
    load_top(kernexec && OWN_TOP ? cpu_top : kernel_top);
    write_cr4(read_cr4() | CR4_PGE);
}

/* Maps a page of a device at a place that nothing else has, for the kernel, before there are processes. */
const volatile uint32_t *paging_window(phys_t device) {
    unsigned long address = 0ul - 16 * LARGE_SIZE;
    set_leaf(find_leaf(kernel_top, address, 1), ENTRY_ADDRESS(device) | PAGE_PRESENT | PAGE_WRITE | PAGE_ACCESSED | PAGE_DIRTY);
    invlpg(address);
    return (const volatile uint32_t *)(address + device % PAGE_SIZE);
}

/* Creates a top-level table; its kernel part is a copy of the kernel's own. */
static entry_t *top_create(void) {
    entry_t *top = to_virtual(page_alloc_zeroed());
    memcpy(top + TOP_KERNEL, kernel_top + TOP_KERNEL, (TOP_ENTRIES - TOP_KERNEL) * sizeof *top);
#ifdef PAE
    /* The processor reads these only when it loads CR3, so all of them exist from the beginning. */
    for (unsigned i = 0; i < TOP_USER; i++)
        set_upper(&top[i], page_alloc_zeroed() | PAGE_PRESENT);
#endif
    return top;
}

static struct mm *mm_new(void) {
    struct mm *mm = cache_alloc(&mm_cache);
    memset(mm, 0, sizeof *mm);
    mm->users = mm->references = 1;
    mm->top = top_create();
    return mm;
}

static void add_area(struct mm *mm, unsigned long start, unsigned long end, unsigned flags, phys_t image) {
    mm->areas[mm->area_count++] = (struct area){start, end, flags, image};
}

/* Creates the address space of the first process: the image's program, with a stack. */
struct mm *mm_create(void) {
    struct mm *mm = mm_new();
    unsigned long text = (unsigned long)user_text_begin, data = (unsigned long)user_text_end;
    unsigned long bss = (unsigned long)user_data_end;
    add_area(mm, text, data, AREA_IMAGE, (phys_t)user_load);
    add_area(mm, data, bss, AREA_IMAGE | AREA_WRITE, (phys_t)user_load + (data - text));
    add_area(mm, bss, (unsigned long)user_bss_end, AREA_WRITE, 0);
    add_area(mm, USER_TOP - STACK_SIZE, USER_TOP, AREA_WRITE, 0);
    return mm;
}

static struct area *find_area(struct mm *mm, unsigned long address) {
    for (unsigned i = 0; i < mm->area_count; i++)
        if (address >= mm->areas[i].start && address < mm->areas[i].end)
            return &mm->areas[i];
    return NULL;
}

int user_range(unsigned long address, unsigned long length, int write) {
    struct area *area = find_area(current->mm, address);
    return area && length <= area->end - address && (!write || area->flags & AREA_WRITE);
}

/* Gives both the mapped pages of a private area, read-only until one of them writes. Pages that the image can supply
   again are left to faults. */
static void copy_area(struct mm *to, struct mm *from, const struct area *area) {
    if (!(area->flags & AREA_WRITE))
        return;
    for (unsigned long address = area->start; address < area->end; address += PAGE_SIZE) {
        entry_t *source = find_leaf(from->top, address, 0);
        if (!source || !(*source & PAGE_PRESENT))
            continue;
        entry_t entry = *source;
        if (entry & PAGE_WRITE) {
            entry &= ~(entry_t)PAGE_WRITE;
            set_leaf(source, entry);
        }
        page_get(ENTRY_ADDRESS(entry));
        set_leaf(find_leaf(to->top, address, 1), entry & ~(entry_t)PAGE_DIRTY);
    }
}

struct mm *mm_copy(struct mm *from) {
    struct mm *mm = mm_new();
    mm->area_count = from->area_count;
    memcpy(mm->areas, from->areas, sizeof mm->areas);
    for (unsigned i = 0; i < mm->area_count; i++)
        copy_area(mm, from, &mm->areas[i]);
    flush_tlb();
    return mm;
}

static void unmap_area(struct mm *mm, const struct area *area) {
    for (unsigned long address = area->start; address < area->end; address += PAGE_SIZE) {
        entry_t *leaf = find_leaf(mm->top, address, 0);
        if (!leaf || !(*leaf & PAGE_PRESENT))
            continue;
        phys_t page = ENTRY_ADDRESS(*leaf);
        set_leaf(leaf, 0);
        page_put(page);
    }
}

/* Frees the tables below an entry of the given level. Tables are unhooked before they are freed. */
static void free_tables(entry_t *entry, int level) {
    if (!(*entry & PAGE_PRESENT))
        return;
    phys_t table = ENTRY_ADDRESS(*entry);
    entry_t *entries = to_virtual(table);
    if (level > 2)
        for (unsigned i = 0; i < TABLE_ENTRIES; i++)
            free_tables(&entries[i], level - 1);
    set_upper(entry, 0);
    page_put(table);
}

void mm_put(struct mm *mm) {
    if (--mm->users)
        return;
    for (unsigned i = 0; i < mm->area_count; i++)
        unmap_area(mm, &mm->areas[i]);
#ifndef PAE
    if (kernexec && OWN_TOP && current->active_mm == mm) {
        open_kernel();
        for (unsigned i = 0; i < TOP_USER; i++)
            set_leaf(&cpu_top[i], 0);
        close_kernel();
    }
    for (unsigned i = 0; i < TOP_USER; i++)
        free_tables(&mm->top[i], LEVELS);
#else
    for (unsigned i = 0; i < TOP_USER; i++) {
        entry_t *middle = to_virtual(ENTRY_ADDRESS(mm->top[i]));
        for (unsigned j = 0; j < TABLE_ENTRIES; j++)
            free_tables(&middle[j], 2);
    }
#endif
    if (current->active_mm == mm)
        flush_tlb();
    mm_drop(mm);
}

void mm_drop(struct mm *mm) {
    if (--mm->references)
        return;
    if (paravirt)
        paravirt_table_freed(to_physical(mm->top));
#ifdef PAE
    for (unsigned i = 0; i < TOP_USER; i++)
        page_put(ENTRY_ADDRESS(mm->top[i]));
#endif
    page_put(to_physical(mm->top));
    cache_free(&mm_cache, mm);
}

/* Switches between address spaces, or back from idling to the same one. */
void mm_switch(const struct mm *previous, struct mm *next) {
    if (kernexec && OWN_TOP) {
        open_kernel();
        for (unsigned i = 0; i < TOP_USER; i++)
            set_leaf(&cpu_top[i], next->top[i]);
        close_kernel();
        load_top(cpu_top);
    } else if (next != previous) {
        load_top(next->top);
    }
}

static phys_t copy_page(phys_t from) {
    phys_t page = page_alloc();
    memcpy(to_virtual(page), to_virtual(from), PAGE_SIZE);
    return page;
}

enum { FAULT_PROTECTION = 1, FAULT_WRITE = 2, FAULT_USER = 4 };

/* Maps the page of an address according to its area; returns 0 if there is no area or it does not permit the access. */
int page_fault(struct mm *mm, unsigned long address, unsigned long error) {
    struct area *area = find_area(mm, address);
    int write = (error & FAULT_WRITE) != 0;
    if (!area || (write && !(area->flags & AREA_WRITE)))
        return 0;
    address &= PAGE_MASK;
    entry_t *leaf = find_leaf(mm->top, address, 1);
#ifndef PAE
    /* A table that this fault added may be referenced by the top level, of which the processor has a copy. */
    if (kernexec && OWN_TOP && cpu_top[index_of(address, LEVELS)] != mm->top[index_of(address, LEVELS)])
        set_upper(&cpu_top[index_of(address, LEVELS)], mm->top[index_of(address, LEVELS)]);
#endif
    entry_t flags = PAGE_PRESENT | PAGE_USER | PAGE_ACCESSED;
    entry_t writable = PAGE_WRITE | PAGE_DIRTY;
    if (*leaf & PAGE_PRESENT) {
        if (!write || *leaf & PAGE_WRITE)
            return 1; /* the processor still cached an old translation */
        phys_t page = ENTRY_ADDRESS(*leaf);
        if (page != zero_page && page_references(page) == 1) {
            set_leaf(leaf, page | flags | writable);
        } else {
            phys_t copy = page == zero_page ? page_alloc_zeroed() : copy_page(page);
            set_leaf(leaf, copy | flags | writable);
            page_put(page);
        }
        invlpg(address);
        return 1;
    }
    if (area->flags & AREA_IMAGE) {
        phys_t image = area->image + (address - area->start);
        if (area->flags & AREA_WRITE && write) {
            set_leaf(leaf, copy_page(image) | flags | writable);
        } else {
            page_get(image);
            set_leaf(leaf, image | flags);
        }
    } else if (write) {
        set_leaf(leaf, page_alloc_zeroed() | flags | writable);
    } else {
        page_get(zero_page);
        set_leaf(leaf, zero_page | flags);
    }
    return 1;
}

/* For the stress test: returns a top-level table with its own tables on the way to `address` down to level 2, which
   is stored in `middle`. */
entry_t *paging_test_top(unsigned long address, phys_t *middle) {
    entry_t *top = top_create(), *table = top;
    for (int level = LEVELS; level > 2; level--) {
        entry_t *entry = &table[index_of(address, level)];
        if (!(*entry & PAGE_PRESENT))
            *entry = page_alloc_zeroed() | PAGE_PRESENT | PAGE_WRITE | PAGE_USER;
        table = to_virtual(ENTRY_ADDRESS(*entry));
    }
    *middle = to_physical(table);
    return top;
}

void paging_test_map(entry_t *top, unsigned long address, entry_t entry) { *find_leaf(top, address, 1) = entry; }
