/*
 * print.c: output for people: errors, colours, wrapped text, and problems of job files.
 */
#include "cli.h"

#include <tandem/os.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_WIDTH = 80 };

char **cli_argv;
static cli_words said; /* set before other threads exist */
static int copy_fd = -1;

void cli_hush(cli_words words)
{
    said = words;
}

void cli_copy_to(int fd)
{
    copy_fd = fd;
}

/* Writes to the second descriptor. Errors are ignored, because they cannot be reported. */
static void write_copy(const char *text, size_t length)
{
    ssize_t written = copy_fd >= 0 ? write(copy_fd, text, length) : 0;
    (void)written;
}

bool cli_colour(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (no_color && *no_color) return false;
    if (!term || strcmp(term, "dumb") == 0) return false;
    return isatty(fileno(stream)) == 1;
}

static void print_line(const char *colour, const char *word, const tdm_str *text)
{
    bool coloured = cli_colour(stderr);
    if (copy_fd >= 0) dprintf(copy_fd, "%s%s\n", word, tdm_str_text(text));
    fprintf(stderr, "%s%s%s%s\n", coloured ? colour : "", word, coloured ? "\033[0m" : "",
            tdm_str_text(text));
}

void cli_error(const char *fmt, ...)
{
    if (said == CLI_SAY_NOTHING) return;
    tdm_str text = TDM_STR_INIT;
    va_list args;
    va_start(args, fmt);
    tdm_str_addv(&text, fmt, args);
    va_end(args);
    print_line("\033[1;31m", "tandem: ", &text);
    tdm_str_release(&text);
}

void cli_warn(const char *fmt, ...)
{
    if (said != CLI_SAY_ALL) return;
    tdm_str text = TDM_STR_INIT;
    va_list args;
    va_start(args, fmt);
    tdm_str_addv(&text, fmt, args);
    va_end(args);
    print_line("\033[1;33m", "tandem: warning: ", &text);
    tdm_str_release(&text);
}

int cli_fail(const tdm_error *err)
{
    cli_error("%s", err->message);
    switch (err->status) {
    case TDM_ERR_JOB_INVALID: return CLI_USAGE;
    case TDM_ERR_DIVERGED: return CLI_DIVERGED;
    case TDM_ERR_JOB_MISMATCH: return CLI_MISMATCH;
    case TDM_ERR_BUSY: return CLI_BUSY;
    case TDM_ERR_INTERRUPTED: return CLI_INTERRUPTED;
    default: return CLI_FAILED;
    }
}

int cli_print(tdm_str *text)
{
    int code = CLI_OK;
    write_copy(tdm_str_text(text), text->length);
    if (!tdm_str_ok(text)) {
        cli_error("out of memory for the output");
        code = CLI_FAILED;
    } else if (fwrite(tdm_str_text(text), 1, text->length, stdout) != text->length ||
               fflush(stdout) != 0) {
        if (errno != EPIPE) cli_error("cannot write the output: %s", strerror(errno));
        code = CLI_FAILED;
    }
    tdm_str_release(text);
    return code;
}

void cli_wrap(tdm_str *out, const char *text, int indent)
{
    size_t column = 0;
    while (*text) {
        if (*text == '\n') { /* newlines are kept */
            tdm_str_add_char(out, '\n');
            column = 0;
            text++;
            continue;
        }
        size_t length = strcspn(text, " \n");
        if (column > 0 && column + 1 + length > (size_t)(TEXT_WIDTH - indent)) {
            tdm_str_add_char(out, '\n');
            column = 0;
        }
        if (column == 0)
            for (int i = 0; i < indent; i++) tdm_str_add_char(out, ' ');
        else
            tdm_str_add_char(out, ' ');
        tdm_str_add_bytes(out, text, length);
        column += length + (column > 0);
        text += length;
        while (*text == ' ') text++;
    }
    tdm_str_add_char(out, '\n');
}

const char *cli_short_path(const char *path)
{
    char here[4096];
    if (!getcwd(here, sizeof(here))) return path;
    size_t length = strlen(here);
    bool below = strncmp(path, here, length) == 0 && path[length] == '/' && path[length + 1];
    return below ? path + length + 1 : path;
}

static void show_job_warnings(const tdm_job_document *document)
{
    tdm_job_problems warnings = tdm_job_document_warnings(document);
    for (size_t i = 0; i < warnings.count; i++) {
        tdm_str text = TDM_STR_INIT;
        tdm_job_problem_text(&warnings.items[i], &text);
        cli_warn("%s", tdm_str_text(&text));
        tdm_str_release(&text);
    }
}

/* Vendor kernels use the threads of GCC's OpenMP, which spin for milliseconds whenever they wait, unless
 * the environment limits that at the start of the process. On shared CPUs the spinning takes many times
 * as long as the work. So for a job with such threads the program is executed again with the environment
 * variable set, unless the user has set it. */
static void limit_openmp_spinning(const tdm_job *job, const char *path)
{
    bool spins = job->compute.numerics == TDM_JOB_NUMERICS_VENDOR && job->compute.threads > 1;
    sigset_t held, before;
    if (!spins || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (!tdm_path_is_file(path)) return; /* a pipe could not be read again */
    if (setenv("GOMP_SPINCOUNT", "2000", 1) != 0) return;
    /* Signals stay pending until the new program handles them. */
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_BLOCK, &held, &before);
    execv("/proc/self/exe", cli_argv);
    sigprocmask(SIG_SETMASK, &before, NULL); /* execv failed: the threads spin */
}

tdm_job_document *cli_load_job(const cli_args *args, const char *path, int *code)
{
    tdm_job_options options = {.overrides = args->sets, .override_count = (size_t)args->set_count};
    tdm_job_document *document = NULL;
    tdm_error err;
    tdm_status status = tdm_job_load(path, &options, &document, &err);
    if (status == TDM_OK) {
        limit_openmp_spinning(tdm_job_document_job(document), path);
        show_job_warnings(document);
        return document;
    }
    *code = status == TDM_ERR_JOB_MISMATCH ? CLI_MISMATCH : CLI_USAGE;
    if (!document) {
        cli_error("%s", err.message);
        return NULL;
    }
    tdm_job_problems problems = tdm_job_document_problems(document);
    tdm_str text = TDM_STR_INIT;
    for (size_t i = 0; i < problems.count && said != CLI_SAY_NOTHING; i++) {
        tdm_str_clear(&text);
        tdm_job_problem_text(&problems.items[i], &text);
        fprintf(stderr, "%s\n", tdm_str_text(&text));
    }
    tdm_str_release(&text);
    cli_error("%zu problem%s in the job; nothing was started", problems.count,
              problems.count == 1 ? "" : "s");
    tdm_job_document_destroy(document);
    return NULL;
}
