/*
 * job.h: the job file, which says everything that decides a training run.
 *
 * One table of keys (src/job/keys.c) gives parsing, types, ranges, defaults, help and the reference
 * page. A job is loaded whole or not at all; all problems of a file are collected in one go, each
 * with its place. Paths in a file are relative to the file; paths given by --set are relative to
 * the current folder; in a loaded job all of them are absolute.
 */
#ifndef TANDEM_JOB_H
#define TANDEM_JOB_H

#include <tandem/base.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values of the choice keys, in the order of the table's choices. */
typedef enum tdm_job_format {
    TDM_JOB_FORMAT_AUTO,
    TDM_JOB_FORMAT_CSV,
    TDM_JOB_FORMAT_IDX
} tdm_job_format;
typedef enum tdm_job_header {
    TDM_JOB_HEADER_AUTO,
    TDM_JOB_HEADER_YES,
    TDM_JOB_HEADER_NO
} tdm_job_header;
typedef enum tdm_job_normalise {
    TDM_JOB_NORMALISE_AUTO,
    TDM_JOB_NORMALISE_NONE,
    TDM_JOB_NORMALISE_SCALE,
    TDM_JOB_NORMALISE_STANDARD
} tdm_job_normalise;
typedef enum tdm_job_last_batch {
    TDM_JOB_LAST_BATCH_KEEP,
    TDM_JOB_LAST_BATCH_DROP
} tdm_job_last_batch;
typedef enum tdm_job_activation {
    TDM_JOB_ACTIVATION_RELU,
    TDM_JOB_ACTIVATION_GELU,
    TDM_JOB_ACTIVATION_TANH,
    TDM_JOB_ACTIVATION_SIGMOID
} tdm_job_activation;
typedef enum tdm_job_model { TDM_JOB_MODEL_MLP } tdm_job_model;
typedef enum tdm_job_optim { TDM_JOB_OPTIM_SGD, TDM_JOB_OPTIM_ADAMW } tdm_job_optim;
typedef enum tdm_job_backend { TDM_JOB_BACKEND_AUTO, TDM_JOB_BACKEND_REF } tdm_job_backend;

typedef struct tdm_job_int_list {
    const int64_t *values;
    size_t count;
} tdm_job_int_list;

/*
 * A loaded job: plain fields, one per key, grouped as in the file. Texts and lists belong to the
 * job. An optional path that was not given is NULL.
 */
typedef struct tdm_job {
    const char *name;
    int64_t seed;
    struct {
        int kind; /* tdm_job_model */
        tdm_job_int_list hidden;
        int activation; /* tdm_job_activation */
        double dropout;
        const char *init_from; /* a safetensors file */
    } model;
    struct {
        const char *train;
        const char *train_labels;
        const char *test;
        const char *test_labels;
        double test_fraction;  /* 0: no split */
        int format;            /* tdm_job_format */
        int header;            /* tdm_job_header */
        const char *label;     /* a column name, a number counted from 1, "first" or "last" */
        const char *delimiter; /* one character, or "tab" */
        int normalise;         /* tdm_job_normalise */
        bool shuffle;
        int last_batch; /* tdm_job_last_batch */
    } data;
    struct {
        int64_t batch;
        int64_t epochs; /* 0 when train.steps rules */
        int64_t steps;  /* 0 when train.epochs rules */
    } train;
    struct {
        int kind; /* tdm_job_optim */
        double lr;
        double momentum;
        bool nesterov;
        double beta1;
        double beta2;
        double eps;
        double weight_decay;
    } optim;
    struct {
        int64_t lanes; /* 0: auto */
    } parallel;
    struct {
        int backend; /* tdm_job_backend */
    } compute;
    struct {
        int64_t every_epochs; /* 0: only at the end */
        int64_t batch;
    } eval;
    struct {
        int64_t every_epochs; /* 0: off */
        int64_t every_steps;  /* 0: off */
        int64_t keep;         /* 0: all */
    } checkpoint;
    struct {
        const char *dir;         /* runs are made below it */
        int64_t log_every_steps; /* a line in metrics.jsonl for every so many steps */
    } run;
} tdm_job;

/* One thing wrong with a job. */
typedef struct tdm_job_problem {
    const char *file; /* as given; "--set" for an override */
    int line;         /* from 1; 0 when it has no place in a file */
    int column;
    const char *message; /* what is wrong and what to do, without the place */
} tdm_job_problem;

typedef struct tdm_job_problems {
    const tdm_job_problem *items;
    size_t count;
} tdm_job_problems;

typedef struct tdm_job_options {
    const char *const *overrides; /* "a.b.c=value" */
    size_t override_count;
    bool no_file_checks; /* do not look whether named files exist (for documentation, fuzzing) */
} tdm_job_options;

/*
 * A loaded job, or what is wrong with it. After a load, exactly one of the two has content: `job`
 * is NULL when there are problems. Both live until the document is destroyed.
 */
typedef struct tdm_job_document tdm_job_document;

/* Fails (TDM_ERR_JOB_INVALID) with the first problem in `err`; *out is set all the same, so that the
 * caller can print all of them; *out is NULL only when memory ran out or the file was unreadable. */
TDM_API tdm_status tdm_job_load(const char *path, const tdm_job_options *options,
                                tdm_job_document **out, tdm_error *err);
/* The same from bytes; `name` stands for the file in messages, `dir` anchors relative paths. */
TDM_API tdm_status tdm_job_parse(const char *bytes, size_t count, const char *name, const char *dir,
                                 const tdm_job_options *options, tdm_job_document **out,
                                 tdm_error *err);
TDM_API void tdm_job_document_destroy(tdm_job_document *document);
TDM_API const tdm_job *tdm_job_document_job(const tdm_job_document *document);
TDM_API tdm_job_problems tdm_job_document_problems(const tdm_job_document *document);
/* "file:line:column: message". */
TDM_API void tdm_job_problem_text(const tdm_job_problem *problem, tdm_str *out);

/* The job with all defaults as YAML; parsing it gives the same job. */
TDM_API void tdm_job_show(const tdm_job *job, tdm_str *out);
TDM_API void tdm_job_show_json(const tdm_job *job, tdm_str *out);
/*
 * A hash of what decides the trained bits. Keys that do not (names, folders, how often to log or
 * save) are left out, and so are the places of data files, though not how they are read. How long
 * to train is left out as well: it decides where a run stops, not the way it takes, so that a
 * finished run may be continued.
 */
TDM_API tdm_status tdm_job_hash(const tdm_job *job, char hex[TDM_SHA256_HEX], tdm_error *err);
/* Lists in `out` the keys that decide bits and differ: "train.batch: 32 here, 64 there". */
TDM_API size_t tdm_job_diff(const tdm_job *here, const tdm_job *there, tdm_str *out);

/* ---- the table of keys ----------------------------------------------------------------------- */

typedef enum tdm_job_key_type {
    TDM_JOB_KEY_STRING,
    TDM_JOB_KEY_PATH, /* a file that must be there */
    TDM_JOB_KEY_DIR,  /* a folder that may be made */
    TDM_JOB_KEY_INT,
    TDM_JOB_KEY_REAL,
    TDM_JOB_KEY_BOOL,
    TDM_JOB_KEY_CHOICE,
    TDM_JOB_KEY_INT_LIST
} tdm_job_key_type;

/* A check beyond type and range. */
typedef enum tdm_job_key_form {
    TDM_JOB_FORM_ANY,
    TDM_JOB_FORM_NAME,      /* letters, digits, '.', '_', '-': fit for a folder's name */
    TDM_JOB_FORM_CHARACTER, /* one ASCII character, or the word tab */
    TDM_JOB_FORM_POWER_OF_TWO
} tdm_job_key_form;

typedef struct tdm_job_key {
    const char *path; /* "train.batch" */
    tdm_job_key_type type;
    size_t offset;        /* of the field in tdm_job */
    const char *fallback; /* the default as YAML; NULL: the key is required, or an optional path */
    const char *fallback_note; /* shown instead of the default, when that is computed */
    bool required;
    bool decides_bits; /* part of tdm_job_hash */
    double least;      /* numbers: the range, both ends included unless open_... */
    double most;       /* INFINITY: none */
    bool open_least;   /* the lower end is excluded */
    bool open_most;    /* the upper end is excluded */
    size_t most_count; /* lists: how many entries at most */
    tdm_job_key_form form;
    const char *word;     /* an int that may also be this word, meaning 0: "auto", "all", "never" */
    const char *choices;  /* "relu | gelu | tanh" */
    const char *excludes; /* the key it cannot stand beside */
    const char *needs;    /* the key that must be given too */
    const char *also_called; /* "batch_size bs": names from elsewhere, for suggestions only */
    const char *help;        /* a sentence or more */
} tdm_job_key;

TDM_API size_t tdm_job_key_count(void);
TDM_API const tdm_job_key *tdm_job_key_at(size_t index);
/* The reference for all keys that begin with `prefix` ("" for all): plain text, or Markdown. */
TDM_API size_t tdm_job_keys_text(const char *prefix, tdm_str *out);
TDM_API void tdm_job_keys_markdown(tdm_str *out);
TDM_API size_t tdm_job_keys_json(const char *prefix, tdm_str *out);

/* The library that reads YAML: "libyaml 0.2.5". Returns `buffer`. */
TDM_API const char *tdm_job_library(char buffer[TDM_LIBRARY_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
