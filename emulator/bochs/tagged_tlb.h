// A TLB that keeps what a processor may keep, for the emulator Bochs. Copied into its cpu
// directory; the lines that tagged-tlb.patch inserts call these functions. README.md says what is
// modelled.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#ifndef QUELL_TAGGED_TLB_H
#define QUELL_TAGGED_TLB_H

// The emulator's own arrays, DTLB and ITLB, stay as a front that holds entries of the current
// address space only. A miss there asks here before it walks page tables, and each walk is
// remembered here.

// A linear address, after a miss of the front: true with the physical address and the front's entry
// filled, or false if the tables have to be walked.
bool tagged_lookup(BX_CPU_C *cpu, bx_TLB_entry *front, bx_address laddr, unsigned user, unsigned rw,
                   bx_phy_address *paddr);

// What a walk has found: `combined` as the emulator's walks return it, `mask` of the guest's page.
void tagged_remember(BX_CPU_C *cpu, bx_address laddr, bx_phy_address paddr, Bit32u mask,
                     Bit32u combined, Bit32u pkey, unsigned rw);

// Nested tables: the same for a guest-physical address.
bool tagged_nested_lookup(BX_CPU_C *cpu, bx_phy_address guest, unsigned rw, bx_phy_address *paddr);
void tagged_nested_remember(BX_CPU_C *cpu, bx_phy_address guest, bx_phy_address paddr, unsigned rw);
// The size of the page, as a mask, that the last walk of nested tables has found.
void tagged_nested_mask(BX_CPU_C *cpu, Bit64u mask);

// Upper levels: `first` is the highest level of a walk. Returns the level to start from, and
// changes what the walk has gathered so far.
int tagged_walk_start(BX_CPU_C *cpu, bx_address laddr, int first, bx_phy_address *table,
                      Bit32u *combined, bool *nx, Bit64u *offset_mask);
void tagged_remember_table(BX_CPU_C *cpu, bx_address laddr, int level, bx_phy_address table,
                           Bit32u combined, bool nx, bool accessed);

// Faults drop the entries that have led to them.
void tagged_fault(BX_CPU_C *cpu, bx_address laddr);
void tagged_nested_fault(BX_CPU_C *cpu, bx_phy_address guest);

// What software does.
void tagged_reset(BX_CPU_C *cpu, bool hardware);
void tagged_cr0(BX_CPU_C *cpu, Bit32u value);
// MOV CR3 tells whether bit 63 is set before the emulator clears it.
void tagged_cr3_keeps(BX_CPU_C *cpu, bool keeps);
void tagged_cr3(BX_CPU_C *cpu, Bit64u value);
void tagged_cr4(BX_CPU_C *cpu, Bit32u value);
void tagged_invlpg(BX_CPU_C *cpu, bx_address laddr);
void tagged_invpcid(BX_CPU_C *cpu, Bit64u type, unsigned pcid, bx_address laddr);

void tagged_invlpga(BX_CPU_C *cpu, bx_address laddr, Bit32u asid);
void tagged_vmrun(BX_CPU_C *cpu);
void tagged_vmexit(BX_CPU_C *cpu);

// What CPUID says of SVM is changed as the switches want it.
struct cpuid_function_t;
void tagged_svm_leaf(cpuid_function_t *leaf);

void tagged_vmx_switch(BX_CPU_C *cpu);
void tagged_invept(BX_CPU_C *cpu, Bit64u type, Bit64u eptp);
void tagged_invvpid(BX_CPU_C *cpu, Bit64u type, unsigned vpid, bx_address laddr);

#endif
