/*
 * cmd_doctor.c: `tandem doctor`: checks whether this machine is ready for training.
 *
 * Each finding has a verdict: "ok", "note" (it works, but could be better or may surprise) or
 * "problem" (training is likely to fail). Notes and problems contain advice. The command only reads;
 * facts that cannot be determined are omitted.
 */
#include "doctor.h"
#include "session.h"

#include <tandem/system.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MB UINT64_C(1000000)
#define GB UINT64_C(1000000000)

static const char *const verdict_names[] = {"ok", "note", "problem"};

void doctor_find(report *r, const char *group, const char *name, verdict v, const char *advice,
                 const char *fmt, ...)
{
    if (r->count == MAX_FINDING) return;
    finding *f = &r->findings[r->count++];
    *f = (finding){.group = group, .verdict = v, .advice = v == OK ? NULL : advice};
    snprintf(f->name, sizeof(f->name), "%s", name);
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->value, sizeof(f->value), fmt, args);
    va_end(args);
}

/* Reads the first line of a file in /proc or /sys; false if there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool found = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (found) out[strcspn(out, "\n")] = '\0';
    return found;
}

/* ---- the CPU --------------------------------------------------------------------------------- */

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += length)
        if ((p == words || p[-1] == ' ') && (p[length] == ' ' || p[length] == '\0')) return true;
    return false;
}

static bool is_virtual(void)
{
    char line[4096];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !found && fgets(line, sizeof(line), file))
        if (strncmp(line, "flags", 5) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = has_word(line, "hypervisor");
            break;
        }
    if (file) fclose(file);
    return found;
}

static void look_at_processor(report *r, const tdm_system_info *system)
{
    tdm_cpu_info cpu = system->cpu;
    doctor_find(r, "processor", "model", OK, NULL, "%s", cpu.model);
    bool x86 = strcmp(cpu.architecture, "x86_64") == 0;
    bool slow = x86 && !has_word(cpu.features, "avx2");
    doctor_find(
        r, "processor", "level", slow ? NOTE : OK,
        "without AVX2, matrix products are several times slower; in a virtual machine, enable CPU "
        "passthrough",
        "%s (%s)", cpu.level, cpu.architecture);
    const char *asked = getenv("TANDEM_ISA"), *level = system->kernel_level;
    bool is_set = asked && *asked;
    bool obeyed = !is_set || (x86 && strcmp(level + strlen("x86-64-"), asked) == 0);
    doctor_find(
        r, "processor", "kernels", obeyed ? OK : NOTE,
        "TANDEM_ISA is not v2, v3 or v4, or this CPU does not support the level: correct or unset it",
        "%s%s%s", level, is_set ? " with TANDEM_ISA=" : "", is_set ? asked : "");
    doctor_find(r, "processor", "instructions", OK, NULL, "%s",
                cpu.features[0] ? cpu.features : "unknown");
    doctor_find(
        r, "processor", "cores", cpu.usable_count < cpu.online_count ? NOTE : OK,
        "an affinity mask (taskset) or a cgroup quota excludes the others; more workers than usable "
        "cores slow each other down",
        "%d usable of %d", cpu.usable_count, cpu.online_count);
    tdm_topology_info topology = system->topology;
    doctor_find(r, "processor", "topology", OK, NULL,
                "%d core%s, %d hardware thread%s, %d NUMA node%s (%s)", topology.core_count,
                topology.core_count == 1 ? "" : "s", topology.processor_count,
                topology.processor_count == 1 ? "" : "s", topology.memory_node_count,
                topology.memory_node_count == 1 ? "" : "s",
                topology.library[0] ? topology.library
                                    : "without hwloc: every hardware thread counts as a core");
    char governor[64];
    if (read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor,
                  sizeof(governor)))
        doctor_find(r, "processor", "governor", strcmp(governor, "powersave") == 0 ? NOTE : OK,
                    "the clock rate may stay low; as root: cpupower frequency-set -g performance",
                    "%s", governor);
    if (x86)
        doctor_find(r, "processor", "virtual", OK, NULL, "%s",
                    is_virtual() ? "yes; speed may vary with the load of the host" : "no");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void look_at_memory(report *r, const tdm_system_info *system)
{
    tdm_memory_info m = system->memory;
    char a[32], b[32];
    if (m.total_bytes > 0) {
        uint64_t free_bytes = m.available_bytes;
        verdict v = free_bytes < 128 * MB ? PROBLEM : free_bytes < GB ? NOTE : OK;
        doctor_find(
            r, "memory", "available", v,
            "end other programs, or use a smaller model or data set; 'tandem inspect JOB' shows how "
            "much memory a job needs",
            "%s of %s", tdm_text_bytes(free_bytes, a), tdm_text_bytes(m.total_bytes, b));
    }
    if (m.limit_bytes > 0 && m.limit_bytes < m.total_bytes)
        doctor_find(
            r, "memory", "limit", m.limit_bytes < 256 * MB ? PROBLEM : NOTE,
            "the cgroup of this process (a container, a batch job) kills it when it uses more; "
            "increase the limit if a job needs more",
            "%s", tdm_text_bytes(m.limit_bytes, a));
    if (m.transparent_huge[0])
        doctor_find(r, "memory", "huge pages", strcmp(m.transparent_huge, "never") == 0 ? NOTE : OK,
                    "large buffers use many small pages, which is slower; as root: echo madvise > "
                    "/sys/kernel/mm/transparent_hugepage/enabled",
                    "transparent: %s; reserved: %llu of %s", m.transparent_huge,
                    (unsigned long long)m.huge_pages_reserved,
                    m.huge_page_bytes ? tdm_text_bytes(m.huge_page_bytes, a) : "unknown size");
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) == 0) {
        uint64_t size = (uint64_t)shm.f_blocks * shm.f_frsize;
        doctor_find(
            r, "memory", "/dev/shm", size < 64 * MB ? NOTE : OK,
            "Tandem does not use it, but MPI and other programs do; for a container: --shm-size=1g",
            "%s", tdm_text_bytes(size, a));
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

typedef struct limit_row {
    __rlimit_resource_t resource;
    const char *name;
    bool bytes;
    uint64_t problem_below, note_below; /* 0: never */
    const char *advice;
} limit_row;

static const limit_row limit_rows[] = {
    {RLIMIT_NOFILE, "open files", false, 32, 256,
     "increase it: ulimit -n 1024; a run keeps a few files open, the test suite more"},
    {RLIMIT_AS, "address space", true, GB, UINT64_MAX,
     "memory is mapped in large blocks, which may exceed the limit before memory runs out; remove "
     "it: ulimit -v unlimited"},
    {RLIMIT_DATA, "data segment", true, GB, UINT64_MAX,
     "it limits the memory that training maps; remove it: ulimit -d unlimited"},
    {RLIMIT_FSIZE, "file size", true, 10 * MB, UINT64_MAX,
     "larger checkpoints cannot be written; remove it: ulimit -f unlimited"},
    {RLIMIT_CPU, "CPU time (s)", false, 60, UINT64_MAX,
     "the system kills a worker that uses more CPU time; remove it: ulimit -t unlimited"},
    {RLIMIT_NPROC, "processes, threads", false, 16, 256,
     "the limit counts all processes and threads of this user; increase it: ulimit -u 4096"},
    {RLIMIT_MEMLOCK, "locked memory", true, 0, 0, NULL},
    {RLIMIT_CORE, "core files", true, 0, 0, NULL},
};

static void look_at_limits(report *r)
{
    for (size_t i = 0; i < sizeof(limit_rows) / sizeof(limit_rows[0]); i++) {
        const limit_row *row = &limit_rows[i];
        struct rlimit limit;
        char text[32];
        if (getrlimit(row->resource, &limit) != 0) continue;
        if (limit.rlim_cur == RLIM_INFINITY) {
            doctor_find(r, "limits", row->name, OK, NULL, "unlimited");
            continue;
        }
        uint64_t value = limit.rlim_cur;
        verdict v = value < row->problem_below ? PROBLEM : value < row->note_below ? NOTE : OK;
        doctor_find(r, "limits", row->name, v, row->advice, "%s",
                    row->bytes ? tdm_text_bytes(value, text) : tdm_text_count(value, text));
    }
}

/* ---- the disk -------------------------------------------------------------------------------- */

static void look_at_disk(report *r)
{
    struct statvfs disk;
    char a[32];
    if (statvfs(".", &disk) != 0) {
        doctor_find(r, "disk", "this directory", PROBLEM,
                    "change to a directory that exists and try again", "cannot be read");
        return;
    }
    uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    doctor_find(
        r, "disk", "free here",
        free_bytes < 100 * MB ? PROBLEM
        : free_bytes < GB     ? NOTE
                              : OK,
        "checkpoints and logs are written below run.dir; free some space, or use another disk: --set "
        "run.dir=DIRECTORY",
        "%s", tdm_text_bytes(free_bytes, a));
    if (disk.f_files > 0)
        doctor_find(r, "disk", "files left", disk.f_favail < 1000 ? PROBLEM : OK,
                    "the disk has no inodes for more files; remove some files", "%s",
                    tdm_text_count(disk.f_favail, a));
    doctor_find(r, "disk", "writable", access(".", W_OK) == 0 ? OK : NOTE,
                "runs are created below the current directory; use another one: --set "
                "run.dir=DIRECTORY",
                "%s", access(".", W_OK) == 0 ? "yes" : "no");
}

/* ---- software -------------------------------------------------------------------------------- */

static void look_at_software(report *r)
{
    struct utsname name;
    doctor_find(r, "software", "tandem", OK, NULL, "%s", tdm_version());
    if (uname(&name) == 0)
        doctor_find(r, "software", "kernel", OK, NULL, "%s %s", name.sysname, name.release);
}

/* One line for each library, transport and store: what it is, or what is missing. */
static void look_at_parts(report *r, tdm_system_part_kind kind)
{
    static const char *const groups[] = {"software", "communication", "stores"};
    static const char *const advice[] = {NULL,
                                         "only jobs over several hosts, or under mpirun, need it",
                                         "only jobs over several hosts need it"};
    tdm_system_part part;
    for (size_t i = 0; tdm_system_part_at(i, &part); i++) {
        if (part.kind != kind) continue;
        bool is_library = kind == TDM_SYSTEM_PART_LIBRARY;
        if (!part.usable)
            doctor_find(r, groups[kind], part.name, is_library ? OK : NOTE, advice[kind], "%s%s",
                        is_library ? "none: " : "", part.why);
        else
            doctor_find(r, groups[kind], part.name, OK, NULL, "%s%s%s", part.about,
                        part.about[0] && part.library[0] ? "; " : "", part.library);
    }
}

/* ---- output ---------------------------------------------------------------------------------- */

static int count_verdict(const report *r, verdict v)
{
    int count = 0;
    for (int i = 0; i < r->count; i++) count += r->findings[i].verdict == v;
    return count;
}

/* Adds the lines of a finding: the value wrapped in its column, and the advice below it. */
static void add_finding(const finding *f, bool coloured, tdm_str *out)
{
    enum { INDENT = 32 };
    static const char *const colours[] = {"\033[32m", "\033[33m", "\033[1;31m"};
    tdm_str_addf(out, "  %s%-7s%s  %-20s ", coloured ? colours[f->verdict] : "",
                 verdict_names[f->verdict], coloured ? "\033[0m" : "", f->name);
    tdm_str body = TDM_STR_INIT;
    cli_wrap(&body, f->value, INDENT);
    if (f->advice) cli_wrap(&body, f->advice, INDENT);
    const char *text = tdm_str_text(&body);
    tdm_str_add(out, strlen(text) > INDENT ? text + INDENT : "\n");
    if (!tdm_str_ok(&body)) out->failed = true;
    tdm_str_release(&body);
}

static void add_text(const report *r, const char *good, tdm_str *out)
{
    bool coloured = cli_colour(stdout);
    const char *group = "";
    for (int i = 0; i < r->count; i++) {
        const finding *f = &r->findings[i];
        if (strcmp(f->group, group) != 0) tdm_str_addf(out, "%s%s\n", i > 0 ? "\n" : "", f->group);
        group = f->group;
        add_finding(f, coloured, out);
    }
    int notes = count_verdict(r, NOTE), problems = count_verdict(r, PROBLEM);
    if (problems > 0)
        tdm_str_addf(out, "\n%d problem%s, %d note%s\n", problems, problems == 1 ? "" : "s", notes,
                     notes == 1 ? "" : "s");
    else if (notes > 0)
        tdm_str_addf(out, "\n%s; %d note%s\n", good, notes, notes == 1 ? "" : "s");
    else
        tdm_str_addf(out, "\n%s\n", good);
}

static void add_json(const report *r, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "problems", count_verdict(r, PROBLEM));
    tdm_json_put_int(&w, "notes", count_verdict(r, NOTE));
    tdm_json_key(&w, "findings");
    tdm_json_array_begin(&w);
    for (int i = 0; i < r->count; i++) {
        const finding *f = &r->findings[i];
        tdm_json_object_begin(&w);
        tdm_json_put_string(&w, "group", f->group);
        tdm_json_put_string(&w, "name", f->name);
        tdm_json_put_string(&w, "value", f->value);
        tdm_json_put_string(&w, "verdict", verdict_names[f->verdict]);
        if (f->advice) tdm_json_put_string(&w, "advice", f->advice);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

static void look_at_machine(report *r)
{
    tdm_system_info system;
    tdm_system_info_get(&system);
    look_at_software(r);
    look_at_parts(r, TDM_SYSTEM_PART_LIBRARY);
    look_at_processor(r, &system);
    look_at_memory(r, &system);
    look_at_limits(r);
    look_at_disk(r);
    look_at_parts(r, TDM_SYSTEM_PART_TRANSPORT);
    look_at_parts(r, TDM_SYSTEM_PART_STORE);
}

static int doctor_run(const cli_args *args)
{
    report r = {.count = 0};
    const char *target = cli_value(args, "security");
    int code = CLI_OK;
    if (target)
        code = doctor_look_at_security(args, target, &r);
    else
        look_at_machine(&r);
    if (code != CLI_OK) return code;
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        add_json(&r, &out);
    else
        add_text(&r, target ? "no problem found" : "ready to train", &out);
    code = cli_print(&out);
    return code == CLI_OK && count_verdict(&r, PROBLEM) > 0 ? CLI_FAILED : code;
}

static const char *const usage[] = {
    "tandem doctor [--json]", "tandem doctor --security RUN|JOB [--store URL] [--json]", NULL};
static const char *const examples[] = {"tandem doctor",
                                       "check the machine before the first run",
                                       "tandem doctor --security job.yaml",
                                       "check what a run of this job would expose",
                                       "tandem doctor --security digits-1",
                                       "check what an active run exposes",
                                       NULL};

const cli_command cli_doctor = {
    .name = "doctor",
    .summary = "Check whether this machine is ready for training",
    .usage = usage,
    .help =
        "Checks CPU, memory, limits, disk, libraries, transports and stores, and changes nothing. Each "
        "line begins with a verdict: ok, note (it works, but could be better or may surprise) or "
        "problem (training is likely to fail). Notes and problems contain advice.\n\n"
        "With --security it checks a job file or an active run: which sockets listen, what is "
        "encrypted, where the secret is, and who could join.\n\n"
        "The exit code is 1 if there is a problem, for use in scripts.",
    .examples = examples,
    .options = {{.name = "security",
                 .value = "RUN|JOB",
                 .help =
                     "Check the connections, the secret and the store of this run or job file."},
                SESSION_OPTION_STORE,
                CLI_OPTION_JSON},
    .run = doctor_run,
};
