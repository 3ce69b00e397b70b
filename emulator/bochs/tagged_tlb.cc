// A TLB that keeps what a processor may keep: see tagged_tlb.h.
//
// "APM" is the AMD64 Architecture Programmer's Manual (volume 2, where no other is named), "SDM"
// the Intel 64 and IA-32 Architectures Software Developer's Manual (volume 3).
//
// No flush looks for entries. Each entry has the time at which it was made, each flush notes its
// time under what it covers, and an entry lives as long as it is newer than all flushes that cover
// it.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#include "bochs.h"
#include "cpu.h"
#include "cpuid.h"
#include "svm.h"
#include "tagged_tlb.h"

#include <stdarg.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

typedef Bit64u Time;

// Bits of what a walk returns, and of the front's entries.
const Bit32u NO_EXECUTE = 1, WRITEABLE = 2, USER = 4, GLOBAL = 0x100;
const Bit32u NO_HOST_POINTER = 0x800;
// Bits of the kinds of access for which the tables have been walked: a write sets dirty bits.
const Bit8u READ = 1, WRITE = 2, EXECUTE = 4;

const unsigned ANY_PCID = 0xfffe, GLOBAL_PCID = 0xffff;
const size_t MOST = 1 << 17;

enum Kind {
  // Entries.
  DATA,
  CODE,
  GUEST_PHYSICAL,
  TABLE,                       // to TABLE + 4
  // Flushes.
  WHOLE_TAG = TABLE + 8,       // all of a tag
  LINEAR,                      // all but guest-physical entries
  NOT_GLOBAL,
  PCID,                        // those of one PCID that are not global
  TABLES,                      // the upper levels of one PCID, or of a tag with ANY_PCID
  ROOT,                        // what depends on these nested tables
  PAGE,                        // of a page, all pieces, by size to PAGE + 3
  PIECE = PAGE + 4,            // one piece, to PIECE + 3
};

const Bit64u PAGE_MASKS[] = { 0xfff, 0x1fffff, 0x3fffff, 0x3fffffff };

struct Key {
  Bit64u page;                 // page number << 8 | kind
  Bit64u space;                // number of the nested tables << 32 | PCID << 16 | ASID or VPID

  Key(Kind kind, unsigned tag, unsigned pcid = 0, Bit32u root = 0, Bit64u page_number = 0)
    : page(page_number << 8 | kind), space(Bit64u(root) << 32 | Bit64u(pcid) << 16 | tag) {}

  bool operator==(const Key &other) const { return page == other.page && space == other.space; }
};

struct Hash {
  size_t operator()(const Key &key) const {
    Bit64u mixed = key.page ^ key.space * BX_CONST64(0x9e3779b97f4a7c15);
    mixed *= BX_CONST64(0xff51afd7ed558ccd);
    return size_t(mixed ^ mixed >> 32);
  }
};

struct Entry {
  Time made;
  Bit64u physical;
  Bit64u guest_mask;           // the guest's page
  Bit64u piece_mask;           // what one entry of it maps: the smaller page of the two tables
  Bit32u combined;
  Bit32u pkey;
  Bit8u walked;                // READ, WRITE, EXECUTE
};

// Where an access is: a tag and nested tables; 0 is the host, or no nested tables.
struct Space {
  unsigned tag, pcid;
  Bit32u root;
};

// What an ASID was last used for.
struct Use {
  bool used;
  Bit64u nested;
};

struct Options {
  bool on, clean_bits;
  Bit32u asids;                // 0 as the model has them
  Bit64u random;
  Bit32u one_in;

  Options() : on(true), clean_bits(false), asids(0), random(0), one_in(0) {
    const char *tlb = getenv("QUELL_TLB");
    on = !tlb || strcmp(tlb, "plain") != 0;
    clean_bits = getenv("QUELL_CLEAN_BITS") != NULL;
    const char *number = getenv("QUELL_ASIDS");
    if (number) asids = Bit32u(strtoul(number, NULL, 0));
    const char *drop = getenv("QUELL_TLB_DROP");
    if (drop) {
      char *end;
      random = strtoull(drop, &end, 0) * 2 + 1;
      one_in = *end == ':' ? Bit32u(strtoul(end + 1, NULL, 0)) : 0;
    }
  }
};

Options options;
// ASIDs with which any processor has entered a guest.
std::set<Bit32u> asids_in_use;
std::map<std::string, unsigned> complaints;

// A line to standard error for the program that watches. The same kind of complaint comes 8 times.
void complain(BX_CPU_C *cpu, const char *kind, const char *format, ...) {
  if (++complaints[kind] > 8) return;
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "QUELL-TLB: %s: cpu %u: ", kind, cpu->bx_cpuid);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  fflush(stderr);
  va_end(arguments);
}

// One processor's.
class Tlb {
public:
  std::unordered_map<Key, Entry, Hash> entries;
  std::unordered_map<Key, Time, Hash> flushes;
  std::unordered_map<Bit64u, Bit32u> roots;
  std::map<Bit32u, Use> uses;
  // VMCBs as they were after the last exit on this processor.
  std::map<Bit64u, std::vector<Bit8u> > blocks;
  Time now, everything, all_roots, all_vpids;
  unsigned asid;
  Bit64u nested_mask;
  bool cr3_keeps;
  Bit64u random;
  Bit64u hits, misses, drops;

  Tlb() : now(1), everything(0), all_roots(0), all_vpids(0), asid(0), nested_mask(0xfff),
    cr3_keeps(false), random(0), hits(0), misses(0), drops(0) {}

  ~Tlb() {
    if (getenv("QUELL_TLB_STATS"))
      fprintf(stderr, "tagged TLB: %llu hits, %llu misses, %llu dropped at random\n",
        (unsigned long long) hits, (unsigned long long) misses, (unsigned long long) drops);
  }

  // EP4TA is bits 51:12 of the EPTP and nothing else of it (SDM, "Information That May Be Cached").
  Bit32u root(Bit64u eptp) {
    Bit64u address = eptp & BX_CONST64(0x000ffffffffff000);
    return roots.insert(std::make_pair(address, Bit32u(roots.size() + 1))).first->second;
  }

  void flush(const Key &what) { flushes[what] = ++now; }

  Time flushed(const Key &what) const {
    std::unordered_map<Key, Time, Hash>::const_iterator found = flushes.find(what);
    return found == flushes.end() ? 0 : found->second;
  }

  bool lives(const Key &key, const Entry &entry) const {
    const unsigned kind = key.page & 0xff, tag = key.space & 0xffff;
    const unsigned pcid = (key.space >> 16) & 0xffff;
    const Bit32u root = Bit32u(key.space >> 32);
    const Time made = entry.made;
    if (made <= everything || made <= flushed(Key(WHOLE_TAG, tag))) return false;
    if (root && (made <= all_roots || made <= flushed(Key(ROOT, 0, 0, root)))) return false;
    if (kind == GUEST_PHYSICAL) return true;
    if (made <= flushed(Key(LINEAR, tag)) || (tag && made <= all_vpids)) return false;
    if (pcid != GLOBAL_PCID) {
      if (made <= flushed(Key(NOT_GLOBAL, tag))) return false;
      if (made <= flushed(Key(PCID, tag, pcid))) return false;
    }
    if (kind >= TABLE)
      return made > flushed(Key(TABLES, tag, pcid)) && made > flushed(Key(TABLES, tag, ANY_PCID));
    const Bit64u laddr = key.page >> 8 << 12;
    return made > flushed(page(PAGE, tag, pcid, laddr, entry.guest_mask))
        && made > flushed(page(PIECE, tag, ANY_PCID, laddr, entry.piece_mask));
  }

  // The flush of a page with this size.
  static Key page(Kind kind, unsigned tag, unsigned pcid, Bit64u laddr, Bit64u mask) {
    unsigned size = 0;
    while (size < 3 && PAGE_MASKS[size] < mask) size++;
    return Key(Kind(kind + size), tag, pcid, 0, (laddr & ~mask) >> 12);
  }

  // Flushes the page at an address, of whatever size the entries there are.
  void flush_page(Kind kind, unsigned tag, unsigned pcid, Bit64u laddr) {
    ++now;
    for (unsigned n = 0; n < 4; n++) flushes[page(kind, tag, pcid, laddr, PAGE_MASKS[n])] = now;
  }

  const Entry *find(const Key &key) {
    std::unordered_map<Key, Entry, Hash>::iterator found = entries.find(key);
    if (found == entries.end()) return NULL;
    bool keep = lives(key, found->second);
    if (keep && options.one_in && drop_at_random()) {
      drops++;
      keep = false;
    }
    if (keep) return &found->second;
    entries.erase(found);
    return NULL;
  }

  bool drop_at_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random % options.one_in == 0;
  }

  void put(const Key &key, Entry entry) {
    if (entries.size() >= MOST || flushes.size() >= MOST) sweep();
    entry.made = ++now;
    std::pair<std::unordered_map<Key, Entry, Hash>::iterator, bool> put =
      entries.insert(std::make_pair(key, entry));
    if (!put.second) put.first->second = entry;
  }

  // Removes what has been flushed; then the flushes cover nothing any more. If all is still in use,
  // all goes: that is a TLB that is too small.
  void sweep() {
    std::unordered_map<Key, Entry, Hash>::iterator next = entries.begin();
    while (next != entries.end())
      next = lives(next->first, next->second) ? ++next : entries.erase(next);
    if (entries.size() > MOST / 2) entries.clear();
    flushes.clear();
  }
};

std::vector<std::unique_ptr<Tlb> > tlbs;

Tlb &tlb(BX_CPU_C *cpu) {
  const size_t number = cpu->bx_cpuid;
  while (tlbs.size() <= number) {
    tlbs.push_back(std::unique_ptr<Tlb>(new Tlb));
    tlbs.back()->random = options.random + 2 * tlbs.size();
  }
  return *tlbs[number];
}

unsigned pcid_of(BX_CPU_C *cpu) {
  return cpu->cr4.get_PCIDE() ? unsigned(cpu->cr3 & 0xfff) : 0;
}

Space space(BX_CPU_C *cpu) {
  Space space = { 0, pcid_of(cpu), 0 };
  if (cpu->in_svm_guest) {
    space.tag = tlb(cpu).asid;
  }
  else if (cpu->in_vmx_guest) {
    // Without VPIDs the guest's mappings are VPID 0's (SDM, "Information That May Be Cached").
    if (cpu->vmcs.vmexec_ctrls2.VPID_ENABLE()) space.tag = cpu->vmcs.vpid;
    if (cpu->vmcs.vmexec_ctrls2.EPT_ENABLE()) space.root = tlb(cpu).root(cpu->vmcs.eptptr);
  }
  return space;
}

bool has_nested_tables(BX_CPU_C *cpu) {
  return (cpu->in_svm_guest && cpu->vmcb->ctrls.nested_paging)
      || (cpu->in_vmx_guest && cpu->vmcs.vmexec_ctrls2.EPT_ENABLE());
}

// Guest-physical entries: the ASID's (APM 15.16, 15.25), or the EP4TA's whatever the VPID.
Key nested_key(BX_CPU_C *cpu, bx_phy_address guest) {
  const Space here = space(cpu);
  return Key(GUEST_PHYSICAL, cpu->in_svm_guest ? here.tag : 0, 0, here.root, guest >> 12);
}

// Not modelled: system management mode, shadow stacks, LASS.
bool is_modelled(BX_CPU_C *cpu, unsigned rw) {
  return options.on && !cpu->in_smm && !(rw & 4) && !cpu->cr4.get_LASS();
}

// Without paging a guest on nested tables has entries all the same, for the addresses that it takes
// for physical ones; with EPT those are guest-physical entries alone (SDM, "Creating and Using").
bool has_own_entries(BX_CPU_C *cpu) {
  return cpu->cr0.get_PG() || (cpu->in_svm_guest && cpu->vmcb->ctrls.nested_paging);
}

// Whether an entry allows an access with the control registers as they are now. If not, tables are
// walked again, as processors do before they raise a fault.
bool allows(BX_CPU_C *cpu, const Entry &entry, unsigned user, unsigned rw) {
  const bool is_user_page = entry.combined & USER;
  if (user && !is_user_page) return false;
  if (rw == BX_EXECUTE) {
    if (entry.combined & NO_EXECUTE) return false;
    return user || !is_user_page || !cpu->cr4.get_SMEP();
  }
  if (!user && is_user_page && cpu->cr4.get_SMAP() && !cpu->get_AC()) return false;
  const bool is_write = rw & 1;
  if (is_write) {
    if (!(entry.walked & WRITE)) return false;
    if (!(entry.combined & WRITEABLE) && (user || cpu->cr0.get_WP())) return false;
  }
#if BX_SUPPORT_PKEYS
  if (cpu->cr4.get_PKE() || cpu->cr4.get_PKS()) {
    const Bit32u *rights = is_write ? cpu->wr_pkey : cpu->rd_pkey;
    if (!(rights[entry.pkey] & (is_write ? TLB_SysWriteOK : TLB_SysReadOK) << user)) return false;
  }
#endif
  return true;
}

// Fills an entry of the front so that it allows this kind of access and no other. A supervisor's
// access to a user's page depends on RFLAGS.AC under SMAP and is looked up each time.
void fill(BX_CPU_C *cpu, bx_TLB_entry *front, const Entry &entry, bx_address laddr, unsigned user,
          unsigned rw) {
  front->lpf = LPFOf(laddr) | NO_HOST_POINTER;
  front->lpf_mask = Bit32u(entry.guest_mask);
  front->ppf = entry.physical;
#if BX_SUPPORT_PKEYS
  front->pkey = entry.pkey;
#endif
  front->accessBits = 0;
  if (rw == BX_EXECUTE) {
    front->accessBits = TLB_SysExecuteOK << user;
    cpu->ITLB.split_large |= entry.guest_mask > 0xfff;
  }
  else {
    if (user || !(entry.combined & USER) || !cpu->cr4.get_SMAP())
      front->accessBits = (rw & 1 ? TLB_SysReadOK | TLB_SysWriteOK : TLB_SysReadOK) << user;
    cpu->DTLB.split_large |= entry.guest_mask > 0xfff;
  }
  if (entry.combined & GLOBAL) front->accessBits |= TLB_GlobalPage;
  front->hostPageAddr = cpu->getHostMemAddr(entry.physical, rw);
  if (front->hostPageAddr) {
#if BX_X86_DEBUGGER
    if (!cpu->hwbreakpoint_check(laddr, BX_HWDebugMemW, BX_HWDebugMemRW))
#endif
      front->lpf = LPFOf(laddr);
  }
#if BX_SUPPORT_MEMTYPE
  front->memtype =
    cpu->resolve_memtype(cpu->memtype_by_mtrr(entry.physical), BxMemtype(entry.combined >> 9 & 7));
#endif
}

} // namespace

bool tagged_lookup(BX_CPU_C *cpu, bx_TLB_entry *front, bx_address laddr, unsigned user, unsigned rw,
                   bx_phy_address *paddr) {
  if (!is_modelled(cpu, rw) || !has_own_entries(cpu)) return false;
  Tlb &own = tlb(cpu);
  const Space here = space(cpu);
  const Kind kind = rw == BX_EXECUTE ? CODE : DATA;
  const unsigned pcids[] = { here.pcid, GLOBAL_PCID };
  for (unsigned n = 0; n < 2; n++) {
    const Key key(kind, here.tag, pcids[n], here.root, laddr >> 12);
    const Entry *entry = own.find(key);
    if (!entry) continue;
    if (!allows(cpu, *entry, user, rw)) {
      own.entries.erase(key);
      continue;
    }
    own.hits++;
    fill(cpu, front, *entry, laddr, user, rw);
    *paddr = entry->physical | PAGE_OFFSET(laddr);
    return true;
  }
  own.misses++;
  return false;
}

void tagged_remember(BX_CPU_C *cpu, bx_address laddr, bx_phy_address paddr, Bit32u mask,
                     Bit32u combined, Bit32u pkey, unsigned rw) {
  if (!is_modelled(cpu, rw) || !has_own_entries(cpu)) return;
  Tlb &own = tlb(cpu);
  const Space here = space(cpu);
  Entry entry = { 0, PPFOf(paddr), mask, mask, combined, pkey, READ };
  if (rw == BX_EXECUTE) entry.walked = EXECUTE;
  else if (rw & 1) entry.walked |= WRITE;
  if (has_nested_tables(cpu) && own.nested_mask < mask) entry.piece_mask = own.nested_mask;
  const unsigned pcid = combined & GLOBAL ? GLOBAL_PCID : here.pcid;
  own.put(Key(rw == BX_EXECUTE ? CODE : DATA, here.tag, pcid, here.root, laddr >> 12), entry);
}

bool tagged_nested_lookup(BX_CPU_C *cpu, bx_phy_address guest, unsigned rw, bx_phy_address *paddr) {
  if (!is_modelled(cpu, rw)) return false;
  Tlb &own = tlb(cpu);
  const Key key = nested_key(cpu, guest);
  const Entry *entry = own.find(key);
  if (!entry) return false;
  const Bit8u need = rw == BX_EXECUTE ? EXECUTE : rw & 1 ? WRITE : READ;
  if (!(entry->walked & need)) {
    own.entries.erase(key);
    return false;
  }
  own.nested_mask = entry->piece_mask;
  *paddr = entry->physical | PAGE_OFFSET(guest);
  return true;
}

void tagged_nested_mask(BX_CPU_C *cpu, Bit64u mask) {
  tlb(cpu).nested_mask = mask;
}

void tagged_nested_remember(BX_CPU_C *cpu, bx_phy_address guest, bx_phy_address paddr,
                            unsigned rw) {
  if (!is_modelled(cpu, rw)) return;
  Tlb &own = tlb(cpu);
  Entry entry = { 0, PPFOf(paddr), 0xfff, own.nested_mask, 0, 0, READ };
  if (rw == BX_EXECUTE) entry.walked = EXECUTE;
  else if (rw & 1) entry.walked |= WRITE;
  own.put(nested_key(cpu, guest), entry);
}

int tagged_walk_start(BX_CPU_C *cpu, bx_address laddr, int first, bx_phy_address *table,
                      Bit32u *combined, bool *nx, Bit64u *offset_mask) {
  if (!is_modelled(cpu, BX_READ)) return first;
  const Space here = space(cpu);
  for (int level = 1; level <= first; level++) {
    const Key key(Kind(TABLE + level), here.tag, here.pcid, here.root, laddr >> (12 + 9 * level));
    const Entry *entry = tlb(cpu).find(key);
    if (!entry) continue;
    *table = entry->physical;
    *combined = entry->combined & (WRITEABLE | USER);
    *nx = entry->combined & NO_EXECUTE;
    *offset_mask >>= 9 * (first - level + 1);
    return level - 1;
  }
  return first;
}

// Nothing is cached of an entry without the accessed bit (SDM, "Paging-Structure Caches").
void tagged_remember_table(BX_CPU_C *cpu, bx_address laddr, int level, bx_phy_address table,
                           Bit32u combined, bool nx, bool accessed) {
  if (!accessed || !is_modelled(cpu, BX_READ)) return;
  const Space here = space(cpu);
  const Key key(Kind(TABLE + level), here.tag, here.pcid, here.root, laddr >> (12 + 9 * level));
  const Entry entry = { 0, table, 0xfff, 0xfff, (combined & ~NO_EXECUTE) | nx, 0, READ };
  tlb(cpu).put(key, entry);
}

// A page fault drops the entries of the page, and those of upper levels that the access would use
// (SDM, "Operations that Invalidate TLBs and Paging-Structure Caches"; APM 5.5.1).
void tagged_fault(BX_CPU_C *cpu, bx_address laddr) {
  if (!options.on) return;
  Tlb &own = tlb(cpu);
  const Space here = space(cpu);
  const unsigned pcids[] = { here.pcid, GLOBAL_PCID };
  for (unsigned n = 0; n < 2; n++) {
    own.entries.erase(Key(DATA, here.tag, pcids[n], here.root, laddr >> 12));
    own.entries.erase(Key(CODE, here.tag, pcids[n], here.root, laddr >> 12));
  }
  for (int level = 1; level <= 4; level++)
    own.entries.erase(
      Key(Kind(TABLE + level), here.tag, here.pcid, here.root, laddr >> (12 + 9 * level)));
}

// An EPT violation drops the guest-physical entries that the access would use; for SVM the manual
// says nothing. The entry of the linear address is gone already.
void tagged_nested_fault(BX_CPU_C *cpu, bx_phy_address guest) {
  tlb(cpu).entries.erase(nested_key(cpu, guest));
}

// INIT leaves guests' entries; the host's paging is off after it.
void tagged_reset(BX_CPU_C *cpu, bool hardware) {
  Tlb &own = tlb(cpu);
  if (hardware) {
    own.everything = ++own.now;
    own.blocks.clear();
    own.uses.clear();
  }
  else {
    own.flush(Key(LINEAR, 0));
  }
}

// APM 5.5.1 and SDM, "Operations that Invalidate TLBs": a change of CR0.PG.
void tagged_cr0(BX_CPU_C *cpu, Bit32u value) {
  if ((cpu->cr0.get32() ^ value) & 0x80000000) tlb(cpu).flush(Key(LINEAR, space(cpu).tag));
}

void tagged_cr3_keeps(BX_CPU_C *cpu, bool keeps) {
  tlb(cpu).cr3_keeps = keeps && cpu->cr4.get_PCIDE();
}

// Drops what is not global: of all, or with PCIDs of the new one, unless bit 63 says to keep it.
void tagged_cr3(BX_CPU_C *cpu, Bit64u value) {
  Tlb &own = tlb(cpu);
  const unsigned tag = space(cpu).tag;
  if (!cpu->cr4.get_PCIDE()) own.flush(Key(NOT_GLOBAL, tag));
  else if (!own.cr3_keeps) own.flush(Key(PCID, tag, unsigned(value & 0xfff)));
  own.cr3_keeps = false;
}

// PGE, PSE, PAE, LA57, or PCIDE to 0: all. SMEP to 1: those of the current PCID and global ones,
// for Intel only; another entry that is kept would do no harm.
void tagged_cr4(BX_CPU_C *cpu, Bit32u value) {
  const Bit32u changed = cpu->cr4.get32() ^ value;
  const Bit32u either = BX_CR4_PGE_MASK | BX_CR4_PSE_MASK | BX_CR4_PAE_MASK | BX_CR4_LA57_MASK;
  if (changed & (either | (~value & BX_CR4_PCIDE_MASK) | (value & BX_CR4_SMEP_MASK)))
    tlb(cpu).flush(Key(LINEAR, space(cpu).tag));
}

// INVLPG: the page with all pieces, global or of the current PCID, whatever the nested tables; and
// all upper levels (of the current PCID; APM 5.5.2 with EFER.TCE = 0).
void tagged_invlpg(BX_CPU_C *cpu, bx_address laddr) {
  Tlb &own = tlb(cpu);
  const Space here = space(cpu);
  own.flush_page(PAGE, here.tag, here.pcid, laddr);
  own.flush_page(PAGE, here.tag, GLOBAL_PCID, laddr);
  own.flush(Key(TABLES, here.tag, here.pcid));
}

void tagged_invpcid(BX_CPU_C *cpu, Bit64u type, unsigned pcid, bx_address laddr) {
  Tlb &own = tlb(cpu);
  const unsigned tag = space(cpu).tag;
  switch (type) {
  case 0: // an address: not global, upper levels of the PCID
    own.flush_page(PAGE, tag, pcid, laddr);
    own.flush(Key(TABLES, tag, pcid));
    break;
  case 1: // a PCID, not global
    own.flush(Key(PCID, tag, pcid));
    break;
  case 2: // all
    own.flush(Key(LINEAR, tag));
    break;
  default: // all that is not global
    own.flush(Key(NOT_GLOBAL, tag));
    break;
  }
}

namespace {

// The control area's fields that matter here (APM appendix B).
const unsigned ASID_FIELD = 0x58, TLB_CONTROL_FIELD = 0x5c, CLEAN_FIELD = 0xc0;
const unsigned NESTED_ROOT_FIELD = 0xb0, CR3_FIELD = 0x550;

Bit64u field(BX_CPU_C *cpu, unsigned offset, unsigned length) {
  Bit64u value = 0;
  cpu->access_read_physical(cpu->vmcbptr + offset, length, &value);
  return value;
}

// What each clean bit covers (APM 15.15.3).
struct Covered {
  unsigned bit, offset, length;
};
const Covered COVERED[] = {
  { 0, 0x000, 0x18 }, { 0, 0x03c, 4 }, { 0, 0x050, 8 },
  { 1, 0x040, 16 },
  { 2, ASID_FIELD, 4 },
  { 3, 0x060, 8 },
  { 4, 0x090, 8 }, { 4, NESTED_ROOT_FIELD, 8 }, { 4, 0x668, 8 },
  { 5, 0x4d0, 8 }, { 5, 0x548, 24 },
  { 6, 0x560, 16 },
  { 7, 0x460, 16 }, { 7, 0x480, 16 },
  { 8, 0x400, 0x40 }, { 8, 0x4cb, 1 },
  { 9, 0x640, 8 },
  { 10, 0x670, 40 },
  { 11, 0x098, 8 }, { 11, 0x0e0, 8 }, { 11, 0x0f0, 16 },
};

// A bit says that what it covers is as this processor has left it. That is so only after an exit
// with the same VMCB on the same processor (APM 15.15.1). Bits mean nothing to a processor without
// them, but they are checked there too.
void check_clean_bits(BX_CPU_C *cpu, Tlb &own) {
  const Bit64u clean = field(cpu, CLEAN_FIELD, 4);
  const Bit64u address = cpu->vmcbptr;
  if (!clean) return;
  std::map<Bit64u, std::vector<Bit8u> >::const_iterator block = own.blocks.find(address);
  if (block == own.blocks.end()) {
    complain(cpu, "clean bits", "VMCB %llx has %llx and was not here last",
      (unsigned long long) address, (unsigned long long) clean);
    return;
  }
  for (size_t n = 0; n < sizeof COVERED / sizeof *COVERED; n++) {
    const Covered &covered = COVERED[n];
    if (!(clean >> covered.bit & 1)) continue;
    Bit8u present[0x40];
    for (unsigned i = 0; i < covered.length; i++)
      cpu->access_read_physical(address + covered.offset + i, 1, present + i);
    if (memcmp(present, &block->second[covered.offset], covered.length))
      complain(cpu, "clean bits", "VMCB %llx: bit %u is set, and the field at %x has changed",
        (unsigned long long) address, covered.bit, covered.offset);
  }
}

} // namespace

// INVLPGA: one piece of the page under any ASID, global or not (APM volume 3), and the upper levels
// of that ASID. From which PCID is not defined; here it is from all.
void tagged_invlpga(BX_CPU_C *cpu, bx_address laddr, Bit32u asid) {
  cpuid_function_t leaf;
  cpu->cpuid->get_cpuid_leaf(0x8000000a, 0, &leaf);
  // Before the first guest there may be measurements with any ASID.
  if (asid && !asids_in_use.empty() && !asids_in_use.count(asid))
    complain(cpu, "INVLPGA", "asid %u, address %llx: no guest was entered with this ASID",
      asid, (unsigned long long) laddr);
  if (asid >= leaf.ebx)
    complain(cpu, "INVLPGA", "asid %u is none of %u", asid, leaf.ebx);
  Tlb &own = tlb(cpu);
  own.flush_page(PIECE, asid & 0xffff, ANY_PCID, laddr);
  own.flush(Key(TABLES, asid & 0xffff, ANY_PCID));
}

// APM 15.16.1, and 15.16.2 for what CPUID has to offer.
void tagged_vmrun(BX_CPU_C *cpu) {
  Tlb &own = tlb(cpu);
  const Bit32u asid = Bit32u(field(cpu, ASID_FIELD, 4));
  const unsigned control = unsigned(field(cpu, TLB_CONTROL_FIELD, 1));
  cpuid_function_t leaf;
  cpu->cpuid->get_cpuid_leaf(0x8000000a, 0, &leaf);
  if (asid >= leaf.ebx) complain(cpu, "VMRUN", "asid %u is none of %u", asid, leaf.ebx);
  own.asid = asid & 0xffff;
  asids_in_use.insert(asid);
  const bool has_flush_by_asid = leaf.edx & BX_CPUID_SVM_FLUSH_BY_ASID;
  if (control > 1 && !has_flush_by_asid)
    complain(cpu, "TLB_CONTROL", "asid %u: %u is not offered by CPUID", asid, control);
  switch (control) {
  case 0:
    break;
  case 1: // all
    own.everything = ++own.now;
    own.uses.clear();
    break;
  case 3: // the guest's
    if (!has_flush_by_asid) break;
    own.flush(Key(WHOLE_TAG, own.asid));
    own.uses.erase(asid);
    break;
  case 7: // the guest's that are not global
    if (!has_flush_by_asid) break;
    own.flush(Key(NOT_GLOBAL, own.asid));
    break;
  default:
    complain(cpu, "TLB_CONTROL", "asid %u: %u is reserved", asid, control);
  }

  const bool nested = cpu->vmcb->ctrls.nested_paging;
  const Bit64u tables = field(cpu, nested ? NESTED_ROOT_FIELD : CR3_FIELD, 8) & ~Bit64u(0xfff);
  const Use use = { true, tables | !nested };
  Use &last = own.uses[asid];
  if (last.used && last.nested != use.nested)
    complain(cpu, "ASID", "asid %u had tables at %llx, has %llx, and nothing was flushed", asid,
      (unsigned long long) last.nested, (unsigned long long) use.nested);
  last = use;
  check_clean_bits(cpu, own);
}

// CPUID Fn8000_000A: the number of ASIDs, and the features.
void tagged_svm_leaf(cpuid_function_t *leaf) {
  if (options.asids) leaf->ebx = options.asids;
  if (options.clean_bits) leaf->edx |= BX_CPUID_SVM_VMCB_CLEAN_BITS;
}

void tagged_vmexit(BX_CPU_C *cpu) {
  // Another processor's copy of this VMCB is older now.
  for (size_t n = 0; n < tlbs.size(); n++)
    if (n != cpu->bx_cpuid) tlbs[n]->blocks.erase(cpu->vmcbptr);
  std::vector<Bit8u> &block = tlb(cpu).blocks[cpu->vmcbptr];
  block.resize(0x1000);
  if (cpu->vmcbhostptr) memcpy(&block[0], (const void *) cpu->vmcbhostptr, block.size());
}

// VM entries and exits without VPIDs drop VPID 0's linear and combined mappings, never guest-
// physical ones (SDM, "Operations that Invalidate Cached Mappings").
void tagged_vmx_switch(BX_CPU_C *cpu) {
  if (!cpu->vmcs.vmexec_ctrls2.VPID_ENABLE()) tlb(cpu).flush(Key(LINEAR, 0));
}

// Guest-physical and combined mappings, for all VPIDs and PCIDs.
void tagged_invept(BX_CPU_C *cpu, Bit64u type, Bit64u eptp) {
  Tlb &own = tlb(cpu);
  if (type == 1) own.flush(Key(ROOT, 0, 0, own.root(eptp)));
  else own.all_roots = ++own.now;
}

// Linear and combined mappings, for all EP4TAs. An address names one piece.
void tagged_invvpid(BX_CPU_C *cpu, Bit64u type, unsigned vpid, bx_address laddr) {
  Tlb &own = tlb(cpu);
  switch (type) {
  case 0:
    own.flush_page(PIECE, vpid, ANY_PCID, laddr);
    own.flush(Key(TABLES, vpid, ANY_PCID));
    break;
  case 1:
    own.flush(Key(LINEAR, vpid));
    break;
  case 2: // all but VPID 0
    own.all_vpids = ++own.now;
    break;
  default: // one, but its global ones
    own.flush(Key(NOT_GLOBAL, vpid));
    break;
  }
}
