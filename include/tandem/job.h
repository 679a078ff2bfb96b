/*
 * job.h: the job file, which describes a training run.
 *
 * One table of keys (src/job/keys.c) defines parsing, types, ranges, defaults, help and the
 * reference page. A job is loaded completely or not at all; all problems of a file are reported at
 * once, each with its position. Paths in a file are relative to the directory of the file; paths
 * given by --set are relative to the current directory; in a loaded job all paths are absolute.
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
    TDM_JOB_FORMAT_IDX,
    TDM_JOB_FORMAT_TEXT,
    TDM_JOB_FORMAT_LIBSVM,
    TDM_JOB_FORMAT_CRITEO
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
typedef enum tdm_job_kv { TDM_JOB_KV_LOCAL, TDM_JOB_KV_ETCD } tdm_job_kv;
typedef enum tdm_job_compress { TDM_JOB_COMPRESS_NONE, TDM_JOB_COMPRESS_ZSTD } tdm_job_compress;

typedef enum tdm_job_bad_numbers {
    TDM_JOB_BAD_NUMBERS_STOP,
    TDM_JOB_BAD_NUMBERS_SKIP
} tdm_job_bad_numbers;
typedef enum tdm_job_activation {
    TDM_JOB_ACTIVATION_RELU,
    TDM_JOB_ACTIVATION_GELU,
    TDM_JOB_ACTIVATION_TANH,
    TDM_JOB_ACTIVATION_SIGMOID
} tdm_job_activation;
typedef enum tdm_job_model {
    TDM_JOB_MODEL_MLP,
    TDM_JOB_MODEL_CNN,
    TDM_JOB_MODEL_RESNET,
    TDM_JOB_MODEL_GPT,
    TDM_JOB_MODEL_LIBRARY,
    TDM_JOB_MODEL_LAYERS,
    TDM_JOB_MODEL_LR,
    TDM_JOB_MODEL_FM,
    TDM_JOB_MODEL_WIDE_DEEP,
    TDM_JOB_MODEL_DLRM
} tdm_job_model;
/* In the order of tdm_table_optim, whose values are part of checkpoints. */
typedef enum tdm_job_table_optim {
    TDM_JOB_TABLE_SGD,
    TDM_JOB_TABLE_ADAGRAD,
    TDM_JOB_TABLE_FTRL,
    TDM_JOB_TABLE_ADAM
} tdm_job_table_optim;
typedef enum tdm_job_depth { TDM_JOB_DEPTH_18, TDM_JOB_DEPTH_34, TDM_JOB_DEPTH_50 } tdm_job_depth;
typedef enum tdm_job_stem { TDM_JOB_STEM_CIFAR, TDM_JOB_STEM_IMAGENET } tdm_job_stem;
typedef enum tdm_job_preset {
    TDM_JOB_PRESET_NONE,
    TDM_JOB_PRESET_GPT2,
    TDM_JOB_PRESET_GPT2_MEDIUM,
    TDM_JOB_PRESET_GPT2_LARGE,
    TDM_JOB_PRESET_GPT2_XL
} tdm_job_preset;
typedef enum tdm_job_optim {
    TDM_JOB_OPTIM_SGD,
    TDM_JOB_OPTIM_ADAGRAD,
    TDM_JOB_OPTIM_RMSPROP,
    TDM_JOB_OPTIM_ADAM,
    TDM_JOB_OPTIM_ADAMW,
    TDM_JOB_OPTIM_LAMB,
    TDM_JOB_OPTIM_LION
} tdm_job_optim;
typedef enum tdm_job_schedule {
    TDM_JOB_SCHEDULE_CONSTANT,
    TDM_JOB_SCHEDULE_STEP,
    TDM_JOB_SCHEDULE_MULTI_STEP,
    TDM_JOB_SCHEDULE_EXPONENTIAL,
    TDM_JOB_SCHEDULE_COSINE,
    TDM_JOB_SCHEDULE_LINEAR,
    TDM_JOB_SCHEDULE_ONE_CYCLE,
    TDM_JOB_SCHEDULE_INVERSE_SQRT,
    TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU
} tdm_job_schedule;
typedef enum tdm_job_anneal { TDM_JOB_ANNEAL_COSINE, TDM_JOB_ANNEAL_LINEAR } tdm_job_anneal;
typedef enum tdm_job_metric {
    TDM_JOB_METRIC_TEST_LOSS,
    TDM_JOB_METRIC_TEST_ACCURACY
} tdm_job_metric;
typedef enum tdm_job_weights {
    TDM_JOB_WEIGHTS_AUTO,
    TDM_JOB_WEIGHTS_EMA,
    TDM_JOB_WEIGHTS_RAW
} tdm_job_weights;
typedef enum tdm_job_recompute {
    TDM_JOB_RECOMPUTE_NONE,
    TDM_JOB_RECOMPUTE_BLOCKS,
    TDM_JOB_RECOMPUTE_FULL
} tdm_job_recompute;
typedef enum tdm_job_backend { TDM_JOB_BACKEND_AUTO, TDM_JOB_BACKEND_REF } tdm_job_backend;
typedef enum tdm_job_numerics {
    TDM_JOB_NUMERICS_PORTABLE,
    TDM_JOB_NUMERICS_VENDOR
} tdm_job_numerics;
enum { TDM_MAX_THREADS = 1024 }; /* per worker */
typedef enum tdm_job_transport {
    TDM_JOB_TRANSPORT_AUTO,
    TDM_JOB_TRANSPORT_SHM,
    TDM_JOB_TRANSPORT_TCP,
    TDM_JOB_TRANSPORT_UCX,
    TDM_JOB_TRANSPORT_MPI
} tdm_job_transport;
/* "auto", "shm", "tcp", "ucx", "mpi". */
TDM_API const char *tdm_job_transport_name(int transport);
typedef enum tdm_job_security {
    TDM_JOB_SECURITY_AUTO,
    TDM_JOB_SECURITY_OFF,
    TDM_JOB_SECURITY_PSK,
    TDM_JOB_SECURITY_TLS
} tdm_job_security;

typedef enum tdm_job_precision { TDM_JOB_PRECISION_F32, TDM_JOB_PRECISION_BF16 } tdm_job_precision;
typedef enum tdm_job_balance {
    TDM_JOB_BALANCE_OFF,
    TDM_JOB_BALANCE_WEIGHTS,
    TDM_JOB_BALANCE_FEEDBACK
} tdm_job_balance;
typedef enum tdm_job_reduce {
    TDM_JOB_REDUCE_TREE,
    TDM_JOB_REDUCE_RING,
    TDM_JOB_REDUCE_CENTRAL
} tdm_job_reduce;

typedef enum tdm_job_sync {
    TDM_JOB_SYNC_ALL_REDUCE,
    TDM_JOB_SYNC_LOCAL,
    TDM_JOB_SYNC_SERVER,
    TDM_JOB_SYNC_GOSSIP
} tdm_job_sync;
typedef enum tdm_job_graph {
    TDM_JOB_GRAPH_RING,
    TDM_JOB_GRAPH_TORUS,
    TDM_JOB_GRAPH_EXPONENTIAL,
    TDM_JOB_GRAPH_RANDOM
} tdm_job_graph;
typedef enum tdm_job_server_mode {
    TDM_JOB_SERVER_SYNC,
    TDM_JOB_SERVER_ASYNC,
    TDM_JOB_SERVER_STALE
} tdm_job_server_mode;

typedef enum tdm_job_order {
    TDM_JOB_ORDER_VIRTUAL,
    TDM_JOB_ORDER_RECORDED,
    TDM_JOB_ORDER_LIVE
} tdm_job_order;
typedef enum tdm_job_outer {
    TDM_JOB_OUTER_AVERAGE,
    TDM_JOB_OUTER_SGD,
    TDM_JOB_OUTER_NESTEROV
} tdm_job_outer;
typedef enum tdm_job_sparsify {
    TDM_JOB_SPARSIFY_NONE,
    TDM_JOB_SPARSIFY_TOPK,
    TDM_JOB_SPARSIFY_TOPK_SAMPLED,
    TDM_JOB_SPARSIFY_RANDOMK,
    TDM_JOB_SPARSIFY_THRESHOLD
} tdm_job_sparsify;
typedef enum tdm_job_quantise {
    TDM_JOB_QUANTISE_NONE,
    TDM_JOB_QUANTISE_BF16,
    TDM_JOB_QUANTISE_F16,
    TDM_JOB_QUANTISE_INT8,
    TDM_JOB_QUANTISE_INT4,
    TDM_JOB_QUANTISE_QSGD,
    TDM_JOB_QUANTISE_SIGN
} tdm_job_quantise;

typedef struct tdm_job_int_list {
    const int64_t *values;
    size_t count;
} tdm_job_int_list;

/* An entry of optim.groups: settings for the parameters whose names match. */
typedef struct tdm_job_param_group {
    const char *match;
    double lr_scale;
    double weight_decay; /* NAN: optim.weight_decay */
} tdm_job_param_group;

typedef struct tdm_job_group_list {
    const tdm_job_param_group *items;
    size_t count;
} tdm_job_group_list;

/* An entry of model.options: both texts as in the job, without quotes. */
typedef struct tdm_job_option {
    const char *name;
    const char *value;
} tdm_job_option;

typedef struct tdm_job_option_list { /* sorted by name */
    const tdm_job_option *items;
    size_t count;
} tdm_job_option_list;

typedef struct tdm_job_early_stop {
    int metric; /* tdm_job_metric */
    int64_t patience;
    double min_delta;
} tdm_job_early_stop;

/* The kinds of layers, in the order of their table (src/job/keys_layers.c). */
typedef enum tdm_job_layer_kind {
    TDM_JOB_LAYER_LINEAR,
    TDM_JOB_LAYER_CONV,
    TDM_JOB_LAYER_CONV1D,
    TDM_JOB_LAYER_MAX_POOL,
    TDM_JOB_LAYER_AVERAGE_POOL,
    TDM_JOB_LAYER_GLOBAL_POOL,
    TDM_JOB_LAYER_BATCH_NORM,
    TDM_JOB_LAYER_LAYER_NORM,
    TDM_JOB_LAYER_RMS_NORM,
    TDM_JOB_LAYER_RELU,
    TDM_JOB_LAYER_GELU,
    TDM_JOB_LAYER_GELU_TANH,
    TDM_JOB_LAYER_SILU,
    TDM_JOB_LAYER_TANH,
    TDM_JOB_LAYER_SIGMOID,
    TDM_JOB_LAYER_DROPOUT,
    TDM_JOB_LAYER_FLATTEN,
    TDM_JOB_LAYER_SEQUENCE,
    TDM_JOB_LAYER_EMBEDDING,
    TDM_JOB_LAYER_POSITIONS,
    TDM_JOB_LAYER_ATTENTION,
    TDM_JOB_LAYER_RESIDUAL,
    TDM_JOB_LAYER_REPEAT,
    TDM_JOB_LAYER_KIND_COUNT
} tdm_job_layer_kind;
typedef enum tdm_job_causal {
    TDM_JOB_CAUSAL_AUTO, /* yes for tokens, no for everything else */
    TDM_JOB_CAUSAL_YES,
    TDM_JOB_CAUSAL_NO
} tdm_job_causal;
typedef enum tdm_job_shortcut {
    TDM_JOB_SHORTCUT_AUTO, /* the identity if the shapes agree, otherwise a projection */
    TDM_JOB_SHORTCUT_IDENTITY,
    TDM_JOB_SHORTCUT_PROJECTION
} tdm_job_shortcut;

#define TDM_JOB_SIZE_CLASSES 0    /* tdm_job_layer.size: the number of classes */
#define TDM_JOB_PADDING_SAME (-1) /* tdm_job_layer.padding: keeps the size */

typedef struct tdm_job_layer tdm_job_layer;
typedef struct tdm_job_layer_list {
    const tdm_job_layer *items; /* NULL: not given */
    size_t count;
} tdm_job_layer_list;

/* An entry of 'layers'. The kind determines which fields are used; the others are zero. */
struct tdm_job_layer {
    int kind;                  /* tdm_job_layer_kind */
    int64_t size;              /* linear: features; convolutions: channels; embedding: width */
    int64_t kernel;            /* convolutions and pools; the same in both dimensions */
    int64_t stride;            /* pools: 0 means the kernel size */
    int64_t padding;           /* convolutions: may be TDM_JOB_PADDING_SAME */
    int64_t dilation;          /* convolutions */
    int64_t groups;            /* convolutions */
    bool bias;                 /* linear, convolutions */
    double momentum;           /* batch_norm */
    double eps;                /* norms */
    double rate;               /* dropout, and the dropout of attention */
    bool tied;                 /* embedding: its table also computes the logits */
    int64_t heads;             /* attention */
    int causal;                /* attention: tdm_job_causal */
    int shortcut;              /* residual: tdm_job_shortcut */
    int64_t times;             /* repeat */
    tdm_job_layer_list layers; /* residual, repeat: the nested layers */
};

/*
 * A loaded job: one field per key, grouped as in the file. The document owns texts and lists. An
 * optional path or mapping that was not given is NULL, an optional number is 0.
 */
typedef struct tdm_job {
    const char *name;
    int64_t seed;
    tdm_job_layer_list layers; /* for the model layers */
    struct {
        int kind; /* tdm_job_model */
        tdm_job_int_list channels;
        int depth; /* tdm_job_depth */
        int stem;  /* tdm_job_stem */
        tdm_job_int_list hidden;
        tdm_job_int_list bottom; /* dlrm: widths of the layers below the interactions */
        int activation;          /* tdm_job_activation */
        double dropout;
        int preset;                  /* tdm_job_preset: defaults of the next five keys */
        int64_t layers;              /* gpt: blocks */
        int64_t width;               /* gpt: channels of the residual stream */
        int64_t heads;               /* gpt: of each attention; width is a multiple of it */
        int64_t context;             /* gpt: tokens in a window */
        int64_t vocabulary;          /* gpt: number of tokens; 0: taken from the data */
        const char *init_from;       /* a safetensors file */
        const char *library;         /* library: the shared object with the model */
        const char *library_sha256;  /* of that file; computed if it was not given */
        tdm_job_option_list options; /* library: settings of its model */
    } model;
    struct {
        const char *train;
        const char *train_labels;
        const char *test;
        const char *test_labels;
        double test_fraction;   /* 0: no split */
        tdm_job_int_list shape; /* of a sample; empty: taken from the file */
        int format;             /* tdm_job_format */
        int header;             /* tdm_job_header */
        const char *label;      /* a column name, a number counted from 1, "first" or "last" */
        const char *delimiter;  /* one character, or "tab" */
        int normalise;          /* tdm_job_normalise */
        bool shuffle;
        int last_batch; /* tdm_job_last_batch */
    } data;
    struct {
        int64_t batch;
        int64_t epochs;                       /* 0 if train.steps is given */
        int64_t steps;                        /* 0 if train.epochs applies */
        double label_smoothing;               /* 0: off */
        double l1;                            /* 0: off */
        double l2;                            /* 0: off */
        const tdm_job_early_stop *early_stop; /* NULL: off */
        int bad_numbers;                      /* tdm_job_bad_numbers */
        int64_t max_bad_numbers;              /* maximum number of consecutive skipped steps */
    } train;
    struct {
        int kind; /* tdm_job_optim */
        double lr;
        double momentum;
        bool nesterov;
        double beta1;
        double beta2;
        double alpha;
        bool centred;
        double eps;
        double weight_decay;
        tdm_job_group_list groups;
        double clip_norm;  /* 0: off */
        double clip_value; /* 0: off */
        double ema;        /* 0: off */
    } optim;
    struct {
        int kind; /* tdm_job_schedule */
        int64_t warmup;
        int64_t steps; /* 0: the length of the run */
        double floor;
        double gamma;
        int64_t every_steps; /* 0: not given */
        tdm_job_int_list milestones;
        double peak_at;
        double start_divisor;
        double end_divisor;
        int anneal; /* tdm_job_anneal */
        int metric; /* tdm_job_metric */
        int64_t patience;
        double threshold;
        int64_t cooldown;
    } schedule;
    struct {
        int64_t dim;         /* numbers of an embedding */
        int optim;           /* tdm_job_table_optim */
        double lr;           /* times the schedule, except for FTRL */
        double l1, l2, beta; /* FTRL */
        double weight_decay; /* the others */
        double init_scale;   /* uniform in [-init_scale, init_scale) */
        int64_t hash_bits;   /* of a key */
        int64_t admission;   /* occurrences before a key gets a row */
        int64_t limit;       /* bytes, of all workers together; 0: auto */
    } table;
    struct {
        int64_t lanes;            /* 0: auto */
        int64_t zero;             /* 0 to 3 */
        const char *offload;      /* a directory; NULL: none */
        int balance;              /* tdm_job_balance */
        tdm_job_int_list weights; /* of the ranks, in order; empty: their number of CPUs */
        int reduce;               /* tdm_job_reduce */
        int64_t bucket;           /* bytes; 0: measured */
        bool overlap;
        bool sync_batchnorm;
    } parallel;
    struct {
        int kind;         /* tdm_job_sync */
        int64_t replicas; /* 0: auto */
        int64_t period;   /* local: steps between two averages; gossip: between two exchanges */
        double
            adapt_lr; /* local: the period grows as the learning rate falls below this; 0: fixed */
        double
            adapt_divergence; /* local: relative distance of the replicas that sets the period; 0: off */
        int64_t max_period; /* local: bound of the growth */
        int64_t start_step; /* local: until this step the period is 1 */
        int outer;          /* local: tdm_job_outer */
        double outer_lr;
        double outer_momentum;
        int mode;                /* server: tdm_job_server_mode */
        int64_t staleness;       /* server, stale: bound */
        tdm_job_int_list speeds; /* server: of the workers, relative; empty: equal */
        double jitter;           /* server: relative variation of the time of a gradient */
        double compensation;     /* server: of the delay; 0: off */
        bool staleness_lr;       /* server */
        int order;               /* server: tdm_job_order */
        const char *order_from;  /* server, recorded: a run, or its file of the order */
        int graph;               /* gossip: tdm_job_graph */
        int64_t degree; /* gossip, exponential and random: replicas that each one sends to */
    } sync;
    struct {
        int sparsify; /* tdm_job_sparsify */
        int quantise; /* tdm_job_quantise */
        double ratio; /* fraction of the elements that are sent */
        double threshold;
        int64_t levels; /* qsgd */
        bool feedback;
        double momentum; /* 0: off */
        bool mask;
        double clip_norm; /* 0: off */
        int64_t warmup;   /* steps */
        int64_t min_elements;
        int64_t rank;       /* PowerSGD; 0: off */
        double min_rate;    /* PowerSGD: matrices that shrink less are sent as they are */
        int64_t start_step; /* the first one that compresses */
        bool automatic;     /* the method is chosen by a measurement */
    } compress;
    struct {
        int backend;     /* tdm_job_backend */
        int numerics;    /* tdm_job_numerics */
        int64_t threads; /* of each worker; 0: auto */
        int precision;   /* tdm_job_precision */
    } compute;
    struct {
        int recompute; /* tdm_job_recompute */
        int64_t limit; /* bytes; 0: the available memory */
    } memory;
    struct {
        int transport; /* tdm_job_transport */
        int64_t streams;
        int security; /* tdm_job_security */
        const char *tls_certificate, *tls_key, *tls_authority;
    } comm;
    struct {
        int64_t every_epochs; /* 0: only at the end */
        int64_t every_steps;  /* 0: off */
        int64_t batch;
        int weights; /* tdm_job_weights */
    } eval;
    struct {
        int64_t every_epochs; /* 0: off */
        int64_t every_steps;  /* 0: off */
        double every_minutes; /* 0: off */
        int64_t keep;         /* 0: all */
        int64_t
            keep_every;    /* checkpoints of multiples of this step are kept permanently; 0: none */
        int64_t keep_best; /* number of checkpoints kept for their test metric */
        int metric;        /* tdm_job_metric of keep_best */
        int compress;      /* tdm_job_compress */
        bool background;
        double retry_s; /* 0: failed writes are not retried */
        bool ledger;    /* write a ledger of samples */
    } checkpoint;
    int store; /* tdm_job_kv */
    struct {
        const char *endpoints; /* URLs, separated by commas */
        const char *user;      /* NULL: none */
        const char *password_file;
        const char *ca, *certificate, *key; /* files; NULL: none */
    } etcd;
    struct {
        int64_t min, max; /* ranks; min 0: one; max 0: the number at the start */
        double wait;      /* seconds to wait for the minimum number of ranks */
        double heartbeat; /* timeout in seconds; 0: derived from observed heartbeats */
        double stall;     /* timeout in seconds; 0: derived from observed steps */
        bool mirror;
        int64_t restarts;      /* of one worker, within restart_window; 0: none */
        double restart_window; /* seconds */
        double grace;          /* seconds from SIGTERM to SIGKILL */
    } elastic;
    struct {
        const char *dir;         /* parent of the run directories */
        int64_t log_every_steps; /* number of steps between lines in metrics.jsonl */
    } run;
} tdm_job;

/* A problem of a job. */
typedef struct tdm_job_problem {
    const char *file; /* as given; "--set" for an override */
    int line;         /* from 1; 0 if it has no position in a file */
    int column;
    const char *message; /* what is wrong and what to do, without the position */
} tdm_job_problem;

typedef struct tdm_job_problems {
    const tdm_job_problem *items;
    size_t count;
} tdm_job_problems;

typedef struct tdm_job_options {
    const char *const *overrides; /* "a.b.c=value" */
    size_t override_count;
    bool no_file_checks; /* do not check whether named files exist (for documentation, fuzzing) */
} tdm_job_options;

/*
 * A loaded job, or its problems. After a load exactly one of the two exists: the job is NULL if
 * there are problems. Both are valid until the document is destroyed.
 */
typedef struct tdm_job_document tdm_job_document;

/* Loads a job from a file. On problems it fails with TDM_ERR_JOB_INVALID, or TDM_ERR_JOB_MISMATCH if
 * the only problem is that model.library does not have the hash model.library_sha256. `err` has the
 * first problem; *out is set as well, so that the caller can print all of them. *out is NULL only if
 * memory ran out or the file was unreadable. */
TDM_API tdm_status tdm_job_load(const char *path, const tdm_job_options *options,
                                tdm_job_document **out, tdm_error *err);
/* Like tdm_job_load, from bytes; `name` is the file name in messages, and relative paths are relative
 * to `dir`. */
TDM_API tdm_status tdm_job_parse(const char *bytes, size_t count, const char *name, const char *dir,
                                 const tdm_job_options *options, tdm_job_document **out,
                                 tdm_error *err);
TDM_API void tdm_job_document_destroy(tdm_job_document *document);
TDM_API const tdm_job *tdm_job_document_job(const tdm_job_document *document);
TDM_API tdm_job_problems tdm_job_document_problems(const tdm_job_document *document);
/* Warnings, such as sizes that were given for a model of another kind. */
TDM_API tdm_job_problems tdm_job_document_warnings(const tdm_job_document *document);
/* "file:line:column: message". */
TDM_API void tdm_job_problem_text(const tdm_job_problem *problem, tdm_str *out);

/* The job with all defaults as YAML; parsing it gives the same job. */
TDM_API void tdm_job_show(const tdm_job *job, tdm_str *out);
TDM_API void tdm_job_show_json(const tdm_job *job, tdm_str *out);
/*
 * A hash of the keys that affect the trained bits. Other keys (names, directories, intervals of
 * logging and saving) are excluded, as are the paths of data files, but not how they are read. The
 * length of the run is excluded as well, so that a finished run can be extended. Some keys affect
 * bits in some jobs only (decides_when): the length of the run if the schedule is as long or if the end of the run
 * can cut a period of local steps short, and the keys of evaluation if the schedule depends on evaluations.
 */
TDM_API tdm_status tdm_job_hash(const tdm_job *job, char hex[TDM_SHA256_HEX], tdm_error *err);

/* ---- the table of keys ----------------------------------------------------------------------- */

typedef enum tdm_job_key_type {
    TDM_JOB_KEY_STRING,
    TDM_JOB_KEY_PATH, /* a file that must exist */
    TDM_JOB_KEY_DIR,  /* a directory that may be created */
    TDM_JOB_KEY_INT,
    TDM_JOB_KEY_REAL,
    TDM_JOB_KEY_BOOL,
    TDM_JOB_KEY_CHOICE,
    TDM_JOB_KEY_INT_LIST,
    TDM_JOB_KEY_MAP,      /* a mapping: the field points to a struct, or is NULL */
    TDM_JOB_KEY_MAP_LIST, /* a list of mappings: the field is a pointer to structs and their count */
    TDM_JOB_KEY_OPTIONS,  /* a mapping of any names to single values: a tdm_job_option_list */
    TDM_JOB_KEY_LAYERS    /* a tdm_job_layer_list */
} tdm_job_key_type;

/* A check beyond type and range. */
typedef enum tdm_job_key_form {
    TDM_JOB_FORM_ANY,
    TDM_JOB_FORM_NAME,      /* letters, digits, '.', '_', '-': valid as a directory name */
    TDM_JOB_FORM_CHARACTER, /* one ASCII character, or the word tab */
    TDM_JOB_FORM_POWER_OF_TWO,
    TDM_JOB_FORM_SHA256, /* 64 hexadecimal digits */
    TDM_JOB_FORM_SIZE,   /* a number of bytes, optionally with a unit: 512MB, 2GiB */
    TDM_JOB_FORM_LAYER   /* a kind of layer: the value of a required first setting is enough */
} tdm_job_key_form;

typedef struct tdm_job_key tdm_job_key;
struct tdm_job_key {
    const char *path; /* "train.batch" */
    tdm_job_key_type type;
    size_t offset;             /* of the field in tdm_job, or in the struct of a mapping */
    const char *fallback;      /* the default as YAML; NULL: the key is required or optional */
    const char *fallback_note; /* shown instead of the default if that is computed */
    bool required;
    bool decides_bits; /* part of tdm_job_hash */
    /* With decides_bits: only for jobs for which decides_when returns true (NULL: for all);
     * decides_note is the condition in words. */
    bool (*decides_when)(const tdm_job *job);
    const char *decides_note;
    double min;                /* numbers: the minimum */
    double max;                /* numbers: the maximum; INFINITY: none */
    bool min_open;             /* the lower end is excluded */
    bool max_open;             /* the upper end is excluded */
    size_t max_count;          /* lists: the maximum number of entries */
    const tdm_job_key *fields; /* mappings: their keys; paths begin with the path of this key */
    size_t field_count;
    size_t struct_bytes; /* mappings: the size of the struct */
    tdm_job_key_form form;
    const char *word;        /* an int that may also be this word: "auto", "all", "never" */
    int64_t word_value;      /* the value of the word */
    const char *not_list;    /* advice in the message about an unexpected list */
    bool or_directory;       /* a path of a file that may also be a directory */
    const char *choices;     /* "relu | gelu | tanh" */
    const char *excludes;    /* a key that cannot be given together with this one */
    const char *needs;       /* a key that must be given as well */
    const char *also_called; /* "batch_size bs": names in other systems, for suggestions only */
    const char *help;        /* a sentence or more */
};

TDM_API size_t tdm_job_key_count(void);
TDM_API const tdm_job_key *tdm_job_key_at(size_t index);
/* How tdm_job_keys prints the table. */
typedef enum tdm_job_keys_format {
    TDM_JOB_KEYS_TEXT = 0,
    TDM_JOB_KEYS_JSON,    /* an array */
    TDM_JOB_KEYS_MARKDOWN /* docs/job-file.md: all keys, whatever the prefix */
} tdm_job_keys_format;
/* The reference of all keys that begin with `prefix` ("" for all). Returns their number. */
TDM_API size_t tdm_job_keys(tdm_job_keys_format format, const char *prefix, tdm_str *out);

#ifdef __cplusplus
}
#endif
#endif
