/*
 * keys_table.c: rows of the table of keys for the sparse table of a model ('table'), and the input of models of sparse
 * samples. keys.c describes the table of keys. Each of these keys affects the trained bits of jobs with such a model,
 * and is not part of the hash of other jobs.
 */
#include "job/job.h"
#include "job/keys.h"

#include <math.h>

enum { CRITEO_NUMBERS = 13, CRITEO_CATEGORIES = 26 };

bool tdm_job_takes_sparse(const tdm_job *job)
{
    int kind = job->model.kind;
    return kind == TDM_JOB_MODEL_LR || kind == TDM_JOB_MODEL_FM ||
           kind == TDM_JOB_MODEL_WIDE_DEEP || kind == TDM_JOB_MODEL_DLRM;
}

tdm_job_columns tdm_job_columns_of(const tdm_job *job)
{
    int kind = job->model.kind;
    bool has_fields = kind == TDM_JOB_MODEL_WIDE_DEEP || kind == TDM_JOB_MODEL_DLRM;
    bool is_criteo = job->data.format == TDM_JOB_FORMAT_CRITEO;
    tdm_job_columns c = {.weight = kind != TDM_JOB_MODEL_DLRM,
                         .dim = kind == TDM_JOB_MODEL_LR ? 0 : job->table.dim,
                         .wide = -1,
                         .sums = -1,
                         .squares = -1,
                         .numbers = -1,
                         .fields = -1};
    c.row_width = c.weight + c.dim;
    if (c.weight) c.wide = c.columns++;
    if (kind == TDM_JOB_MODEL_FM) {
        c.sums = c.columns;
        c.squares = c.sums + c.dim;
        c.columns += 2 * c.dim;
    }
    if (!has_fields) return c;
    c.first_field = is_criteo ? 1 + CRITEO_NUMBERS : 0;
    c.number_count = is_criteo ? CRITEO_NUMBERS : 0;
    c.field_count = is_criteo ? CRITEO_CATEGORIES : 1;
    if (c.number_count > 0) c.numbers = c.columns;
    c.columns += c.number_count;
    c.fields = c.columns;
    c.columns += c.field_count * c.dim;
    return c;
}

static bool has_vectors(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->model.kind != TDM_JOB_MODEL_LR;
}

static bool is_ftrl(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->table.optim == TDM_JOB_TABLE_FTRL;
}

static bool decays(const tdm_job *job)
{
    return tdm_job_takes_sparse(job) && job->table.optim != TDM_JOB_TABLE_FTRL;
}

#define IF_TABLE BITS_IF(tdm_job_takes_sparse, "if the model has a sparse table")
#define IF_VECTORS BITS_IF(has_vectors, "if 'model.kind' is fm, wide_deep or dlrm")
#define IF_FTRL BITS_IF(is_ftrl, "if 'table.optim' is ftrl")

const tdm_job_key tdm__table_keys[] = {
    {
        KEY("table.dim", INT, table.dim),
        .fallback = "16",
        IF_VECTORS,
        RANGE(1, 1024),
        .also_called = "embedding_dim embedding_size factors rank",
        .help = "For fm, wide_deep and dlrm: the numbers in the vector (embedding) of a feature.",
    },
    {
        KEY("table.optim", CHOICE, table.optim),
        .fallback = "adagrad",
        IF_TABLE,
        .choices = "sgd | adagrad | ftrl | adam",
        .also_called = "optimizer kind",
        .help = "The optimiser of the rows. A row changes only in steps whose batch contains its "
                "feature; its momentum and its weight decay rest in between. ftrl is "
                "FTRL-proximal, which sets weights of rare features to zero ('table.l1'). "
                "'optim.kind' is the optimiser of all other parameters.",
    },
    {
        KEY("table.lr", REAL, table.lr),
        .fallback = "0.05",
        IF_TABLE,
        RANGE(0, INFINITY),
        .min_open = true,
        .also_called = "learning_rate alpha",
        .help = "The learning rate of the rows. It follows the schedule: at a step at which the "
                "schedule halves 'optim.lr', it is halved as well. With ftrl it is constant, "
                "because the method reduces the rate of each feature by itself.",
    },
    {
        KEY("table.l1", REAL, table.l1),
        .fallback = "0",
        IF_FTRL,
        RANGE(0, INFINITY),
        .also_called = "lambda1",
        .help = "For ftrl: the L1 penalty. A number whose accumulated gradient is smaller is "
                "zero.",
    },
    {
        KEY("table.l2", REAL, table.l2),
        .fallback = "0",
        IF_FTRL,
        RANGE(0, INFINITY),
        .also_called = "lambda2",
        .help = "For ftrl: the L2 penalty.",
    },
    {
        KEY("table.beta", REAL, table.beta),
        .fallback = "1",
        IF_FTRL,
        RANGE(0, INFINITY),
        .min_open = true,
        .help = "For ftrl: a constant that is added to the root of the sum of squared gradients. "
                "The larger it is, the smaller are the first steps of a feature.",
    },
    {
        KEY("table.weight_decay", REAL, table.weight_decay),
        .fallback = "0",
        BITS_IF(decays, "if 'table.optim' is not ftrl"),
        RANGE(0, INFINITY),
        .help = "For sgd, adagrad and adam: this times a number of a row is added to its "
                "gradient, in steps whose batch contains the feature.",
    },
    {
        KEY("table.init_scale", REAL, table.init_scale),
        .fallback = "0.01",
        IF_VECTORS,
        RANGE(0, INFINITY),
        .help = "New rows are uniform in [-init_scale, init_scale), as a function of 'seed' and "
                "the feature. The rows of lr begin at zero.",
    },
    {
        KEY("table.hash_bits", INT, table.hash_bits),
        .fallback = "63",
        IF_TABLE,
        RANGE(1, 63),
        .also_called = "hash_size hash_space",
        .help = "Features are hashed to this many bits, and features with the same hash share a "
                "row. 63 bits practically never collide; fewer limit the table to "
                "2^hash_bits rows.",
    },
    {
        KEY("table.admission", INT, table.admission),
        .fallback = "1",
        IF_TABLE,
        RANGE(1, 2147483647),
        .also_called = "min_count frequency_threshold",
        .help = "A feature gets a row when it has occurred in this many lanes of batches. Before "
                "that it keeps its initial values, and its gradients are dropped. This saves the "
                "memory of rare features.",
    },
    {
        KEY("table.limit", INT, table.limit),
        .fallback = "auto",
        RANGE(1, TDM__MAX_JOB_INT),
        .form = TDM_JOB_FORM_SIZE,
        .word = "auto",
        .also_called = "capacity max_bytes",
        .help =
            "The maximum size of the table, over all workers together; each of them has an "
            "equal share. A run that needs more ends with an error. auto is 64 GiB for each worker.",
    },
};

const size_t tdm__table_key_count = COUNT(tdm__table_keys);
