/* Powers off through the ACPI tables as an operating system does: RSDP, RSDT, FADT for the port, \_S5 in the DSDT
   for the value. */
#include "runtime.h"

enum { FADT_DSDT = 40, FADT_PM1A_CONTROL = 64, SLEEP_ENABLE = 1 << 13 };

static int matches(const uint8_t *at, const char *text) {
    while (*text)
        if (*at++ != (uint8_t)*text++)
            return 0;
    return 1;
}

static uint32_t read32(const uint8_t *at) { return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24; }

static uint8_t *table_at(uint32_t address) { return (uint8_t *)(uint64_t)address; }

static uint8_t *find_rsdp(void) {
    for (uint32_t address = 0xe0000; address < 0x100000; address += 16)
        if (matches(table_at(address), "RSD PTR "))
            return table_at(address);
    return NULL;
}

/* Finds a table through the 32-bit RSDT, or through the XSDT (entry size 8) if there is no RSDT. */
static uint8_t *find_table(const uint8_t *rsdp, const char *signature) {
    unsigned entry_size = read32(rsdp + 16) ? 4 : 8;
    const uint8_t *root = table_at(entry_size == 4 ? read32(rsdp + 16) : read32(rsdp + 24));
    for (uint32_t offset = 36; offset + entry_size <= read32(root + 4); offset += entry_size)
        if (matches(table_at(read32(root + offset)), signature))
            return table_at(read32(root + offset));
    return NULL;
}

/* Returns the sleep type from Name(\_S5, Package { SLP_TYPa, ... }). The first element is a small integer: a byte
   constant, or ZeroOp/OneOp. */
static int sleep_type(const uint8_t *dsdt) {
    for (uint32_t offset = 36; offset + 12 < read32(dsdt + 4); offset++) {
        const uint8_t *at = dsdt + offset;
        if (!matches(at, "_S5_") || at[4] != 0x12)
            continue;
        at += 5;
        at += (*at >> 6) + 1; /* package length */
        at++;                 /* element count */
        return *at == 0x0a ? at[1] : *at;
    }
    return -1;
}

void acpi_power_off(void) {
    const uint8_t *rsdp = find_rsdp();
    const uint8_t *fadt = rsdp ? find_table(rsdp, "FACP") : NULL;
    if (!fadt) {
        print("%s: no ACPI tables, so no power off\n", program_name);
        return;
    }
    int type = sleep_type(table_at(read32(fadt + FADT_DSDT)));
    if (type < 0) {
        print("%s: the DSDT has no \\_S5, so no power off\n", program_name);
        return;
    }
    outw((uint16_t)read32(fadt + FADT_PM1A_CONTROL), (uint16_t)(type << 10 | SLEEP_ENABLE));
    for (;;) /* the machine may take its time */
        __asm__ volatile("cli; hlt");
}
