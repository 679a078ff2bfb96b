/*
 * keys.c: the table of all job keys. Some of its rows are in other files: the optimiser and its
 * schedule in keys_optim.c; sparse tables in keys_table.c; synchronisation and compression in keys_sync.c; checkpoints, store and
 * elasticity in keys_elastic.c; layers in keys_layers.c.
 *
 * Parsing, checking, defaults, `tandem job keys` and docs/job-file.md are generated from these
 * rows. To add a key, add its field to tdm_job and its row here, and nothing else. The rows of a
 * group are adjacent, in the order in which they are shown and hashed. `help` is written for a
 * reader who has never seen the key; its first sentence must be complete alone.
 */
#include <math.h>
#include <string.h>

#include "job/keys.h"

#define AS_LONG "if the schedule is as long as the run, or if its end can cut a 'sync.period' short"
#define EVALUATES "if the schedule is reduce_on_plateau"
#define IS_LIBRARY "if the model is a library"
#define IS_VENDOR "if compute.numerics is vendor"
#define IS_ABOVE_0 "if it is above 0"

static bool length_decides(const tdm_job *job)
{
    return tdm__schedule_is_as_long(job) || tdm__period_can_be_cut(job);
}

static const tdm__job_group groups[] = {
    {"", "The name of the job, the random seed, the layers of a custom network, and the store."},
    {"model", "The network to train."},
    {"data", "The samples: which files, and how they are read."},
    {"train", "The length of the run, the batch and the loss."},
    {"optim", "The optimiser."},
    {"schedule", "How the learning rate changes over the steps."},
    {"table", "The sparse table of the models lr, fm, wide_deep and dlrm."},
    {"parallel", "How a step is divided among workers."},
    {"sync", "How workers combine their results: after each step, or after several local steps."},
    {"compress", "Compression of what replicas send to each other."},
    {"compute", "Kernels, threads and precision."},
    {"memory", "Memory use and its limit."},
    {"comm", "Communication between ranks."},
    {"eval", "Evaluation on the test set during training."},
    {"checkpoint", "Saving the state, so that a run can resume after any interruption."},
    {"elastic", "Elastic membership and failure handling."},
    {"etcd", "The servers of 'store: etcd'."},
    {"run", "Where results are written."},
};

static bool is_library(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LIBRARY;
}

static bool is_made_of_layers(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LAYERS;
}

static bool is_dlrm(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_DLRM;
}

static bool is_vendor(const tdm_job *job)
{
    return job->compute.numerics == TDM_JOB_NUMERICS_VENDOR;
}

static bool smooths_labels(const tdm_job *job)
{
    return job->train.label_smoothing > 0;
}

static bool has_l1(const tdm_job *job)
{
    return job->train.l1 > 0;
}

static bool has_l2(const tdm_job *job)
{
    return job->train.l2 > 0;
}

static const tdm_job_key first_keys[] = {
    {
        KEY("name", STRING, name),
        .fallback_note = "the job file's name without its extension",
        .form = TDM_JOB_FORM_NAME,
        .also_called = "job_name title",
        .help = "The name of the job. The directory names of its runs begin with it.",
    },
    {
        KEY("seed", INT, seed),
        .fallback = "1",
        .decides_bits = true,
        RANGE(0, TDM__MAX_JOB_INT),
        .also_called = "random_seed random_state",
        .help = "The seed of all random numbers: initial weights, order of samples, dropout, and "
                "the split by 'data.test_fraction'. The same seed gives the same run.",
    },
    {
        KEY("layers", LAYERS, layers),
        BITS_IF(is_made_of_layers, "if 'model.kind' is layers"),
        .max_count = TDM__LAYERS_LISTED,
        .fields = tdm__layer_keys,
        .field_count = TDM_JOB_LAYER_KIND_COUNT,
        .struct_bytes = sizeof(tdm_job_layer),
        .help = "A custom network: the layers that a sample passes through, in order. An entry "
                "is the name of a layer, followed by a colon and its settings if it has any. The "
                "last layer, whose size is the number of classes, is added unless a layer has "
                "the size classes. Giving this key implies 'model.kind: layers'.",
    },
    {
        KEY("model.kind", CHOICE, model.kind),
        .fallback = "mlp",
        .fallback_note = "mlp, or layers if 'layers' is given",
        .decides_bits = true,
        .choices = "mlp | cnn | resnet | gpt | library | layers | lr | fm | wide_deep | dlrm",
        .also_called = "type architecture",
        .help = "The architecture. mlp is a multi-layer perceptron for classification. cnn is a "
                "small convolutional network for images; resnet is a residual network of depth "
                "18, 34 or 50. gpt is the transformer of GPT-2, which predicts the next token of "
                "a text. library is your own model, loaded from the shared object in "
                "'model.library'. layers is the network listed in 'layers'. lr (logistic "
                "regression), fm (factorisation machine), wide_deep and dlrm predict one of two "
                "classes from sparse samples, with a row of a table for each feature ('table').",
    },
    {
        KEY("model.hidden", INT_LIST, model.hidden),
        .fallback = "[128]",
        .decides_bits = true,
        RANGE(1, 1048576),
        .max_count = 64,
        .also_called = "hidden_size hidden_sizes hidden_layers units",
        .help = "The widths of the hidden layers, from input to output. The empty list [] gives "
                "a linear classifier.",
    },
    {
        KEY("model.bottom", INT_LIST, model.bottom),
        .fallback = "[64]",
        BITS_IF(is_dlrm, "if 'model.kind' is dlrm"),
        RANGE(1, 1048576),
        .max_count = 64,
        .also_called = "bottom_mlp arch_mlp_bot",
        .help = "For dlrm: the widths of the hidden layers between the numbers of a sample and "
                "their vector of 'table.dim' numbers. 'model.hidden' has those after the products "
                "of the vectors.",
    },
    {
        KEY("model.channels", INT_LIST, model.channels),
        .fallback = "[32, 64]",
        .decides_bits = true,
        RANGE(1, 65536),
        .max_count = 16,
        .also_called = "filters conv_channels",
        .help = "For cnn: the number of channels of each convolution. Each convolution is 3 x 3 "
                "and is followed by a 2 x 2 max pool; the layers of 'model.hidden' follow the "
                "last one.",
    },
    {
        KEY("model.depth", CHOICE, model.depth),
        .fallback = "18",
        .decides_bits = true,
        .choices = "18 | 34 | 50",
        .help = "For resnet: the number of layers, as in ResNet-18.",
    },
    {
        KEY("model.stem", CHOICE, model.stem),
        .fallback = "cifar",
        .decides_bits = true,
        .choices = "cifar | imagenet",
        .help = "For resnet: the first layers. cifar, for small images, is a 3 x 3 convolution; "
                "imagenet, for large images, is a 7 x 7 convolution with stride 2 and a max "
                "pool.",
    },
    {
        KEY("model.activation", CHOICE, model.activation),
        .fallback = "relu",
        .decides_bits = true,
        .choices = "relu | gelu | tanh | sigmoid",
        .help = "The activation function after each hidden layer.",
    },
    {
        KEY("model.dropout", REAL, model.dropout),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .help = "The fraction of hidden values that dropout sets to zero during training.",
    },
    {
        KEY("model.preset", CHOICE, model.preset),
        .fallback = "none",
        .decides_bits = true,
        .choices = "none | gpt2 | gpt2-medium | gpt2-large | gpt2-xl",
        .also_called = "model_name size",
        .help = "For gpt: a published model size. It sets 'model.layers', 'model.width', "
                "'model.heads', 'model.context' and 'model.vocabulary' unless they are given.",
    },
    {
        KEY("model.layers", INT, model.layers),
        .fallback = "4",
        .decides_bits = true,
        RANGE(1, 1024),
        .also_called = "n_layer n_layers num_layers num_hidden_layers depth blocks",
        .not_list = "a list of layers belongs at the top level of the job: move 'layers:' out of "
                    "'model:'",
        .help = "For gpt: the number of transformer blocks.",
    },
    {
        KEY("model.width", INT, model.width),
        .fallback = "128",
        .decides_bits = true,
        RANGE(1, 65536),
        .also_called = "n_embd d_model embedding dim channels",
        .help = "For gpt: the embedding width, which is the number of channels between the "
                "blocks. It must be a multiple of 'model.heads'.",
    },
    {
        KEY("model.heads", INT, model.heads),
        .fallback = "4",
        .decides_bits = true,
        RANGE(1, 1024),
        .also_called = "n_head n_heads num_heads num_attention_heads",
        .help = "For gpt: the number of attention heads.",
    },
    {
        KEY("model.context", INT, model.context),
        .fallback = "256",
        .decides_bits = true,
        RANGE(1, 1048576),
        .also_called = "block_size context_length seq_len sequence_length n_ctx n_positions",
        .help = "For token models: the context length in tokens, which is also the length of a "
                "training sample.",
    },
    {
        KEY("model.vocabulary", INT, model.vocabulary),
        .fallback = "auto",
        .decides_bits = true,
        RANGE(1, 1048576),
        .word = "auto",
        .also_called = "vocab_size vocab",
        .help = "For token models: the size of the vocabulary. auto uses the number of different "
                "characters in the training text; a given number may be larger than that.",
    },
    {
        KEY("model.init_from", PATH, model.init_from),
        .decides_bits = true,
        .also_called = "pretrained weights",
        .help = "A safetensors file with initial values. A parameter starts from the tensor of "
                "the same name if the file has one, and from random values otherwise.",
    },
    {
        KEY("model.library", PATH, model.library),
        BITS_IF(is_library, IS_LIBRARY),
        .also_called = "plugin shared_object so",
        .help = "For library: the shared object that contains the model. It is code that runs "
                "with your permissions: use only files that you trust.",
    },
    {
        KEY("model.library_sha256", STRING, model.library_sha256),
        .fallback_note = "computed from the file when the job is loaded",
        BITS_IF(is_library, IS_LIBRARY),
        .form = TDM_JOB_FORM_SHA256,
        .needs = "model.library",
        .also_called = "library_hash sha256",
        .help = "The SHA-256 of the file in 'model.library'. If it is given, a file with another "
                "hash is rejected. The job.yaml of a run contains it.",
    },
    {
        KEY("model.options", OPTIONS, model.options),
        BITS_IF(is_library, IS_LIBRARY),
        .max_count = 64,
        .also_called = "args kwargs params settings",
        .help = "For library: the settings of its model, with names that the model defines, such "
                "as {width: 64}. '--set model.options.width=64' sets a single one.",
    },
    {
        KEY("data.train", PATH, data.train),
        .required = true,
        .decides_bits = true,
        .also_called = "path file train_path train_file",
        .help = "The file with the training samples: CSV, IDX images, or a text for token "
                "models. It may be compressed with gzip.",
    },
    {
        KEY("data.train_labels", PATH, data.train_labels),
        .decides_bits = true,
        .also_called = "labels",
        .help = "For IDX: the file with the labels of 'data.train'. A CSV file has its labels in "
                "a column instead, see 'data.label'.",
    },
    {
        KEY("data.test", PATH, data.test),
        BITS_IF(tdm__schedule_evaluates, EVALUATES),
        .excludes = "data.test_fraction",
        .also_called = "validation valid val test_path test_file",
        .help = "The file with the test samples. The model is evaluated on them and never "
                "trained on them.",
    },
    {
        KEY("data.test_labels", PATH, data.test_labels),
        .needs = "data.test",
        .help = "For IDX: the file with the labels of 'data.test'.",
    },
    {
        KEY("data.test_fraction", REAL, data.test_fraction),
        .fallback = "0",
        .decides_bits = true,
        RANGE(0, 1),
        .max_open = true,
        .excludes = "data.test",
        .also_called = "split test_split validation_split",
        .help = "The fraction of 'data.train' that is held out as the test set. The samples are "
                "selected by 'seed'; of a text, it is the last part. 0 holds out nothing.",
    },
    {
        KEY("data.shape", INT_LIST, data.shape),
        .fallback = "[]",
        .fallback_note = "taken from the file",
        .decides_bits = true,
        RANGE(1, 1048576),
        .max_count = 3,
        .also_called = "image_shape input_shape",
        .help = "The shape of a sample, if the file does not define it: [height, width] or "
                "[height, width, channels] for images in a table. The empty list uses the shape "
                "in the file.",
    },
    {
        KEY("data.format", CHOICE, data.format),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | csv | idx | text | libsvm | criteo",
        .help = "The format of the data files. auto detects it from their first bytes; for token "
                "models it is text, which is read character by character. libsvm and criteo have "
                "sparse samples, for the models lr, fm, wide_deep and dlrm; they must be named.",
    },
    {
        KEY("data.header", CHOICE, data.header),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | yes | no",
        .help = "For CSV: whether the first row contains the names of the columns. auto treats "
                "it as a header if a cell that should be a number is not one.",
    },
    {
        KEY("data.label", STRING, data.label),
        .fallback = "last",
        .decides_bits = true,
        .also_called = "target label_column",
        .help = "For CSV: the column with the class: its name, its number counted from 1, or one "
                "of the words first, last and none. none is for files without classes, such as "
                "samples to predict.",
    },
    {
        KEY("data.delimiter", STRING, data.delimiter),
        .fallback = "\",\"",
        .decides_bits = true,
        .form = TDM_JOB_FORM_CHARACTER,
        .also_called = "separator sep",
        .help = "For CSV: the character between two cells. In a job file, a comma must be quoted.",
    },
    {
        KEY("data.normalise", CHOICE, data.normalise),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | none | scale | standard",
        .also_called = "normalize normalization scaling",
        .help = "How features are scaled. scale divides bytes by 255 and other numbers by the "
                "largest one; standard gives each column mean 0 and standard deviation 1 over "
                "the training samples, and disables columns that never vary; none does not "
                "change them. auto uses scale for images of bytes and standard for everything "
                "else.",
    },
    {
        KEY("data.shuffle", BOOL, data.shuffle),
        .fallback = "true",
        .decides_bits = true,
        .help = "Whether each epoch has a new random order of samples; otherwise the order of "
                "the file is used.",
    },
    {
        KEY("data.last_batch", CHOICE, data.last_batch),
        .fallback = "keep",
        .decides_bits = true,
        .choices = "keep | drop",
        .also_called = "drop_last",
        .help = "What happens to the samples at the end of an epoch if they do not fill a batch: "
                "keep trains a smaller batch, drop skips them.",
    },
    {
        KEY("train.batch", INT, train.batch),
        .fallback = "32",
        .decides_bits = true,
        RANGE(1, 2147483647),
        .also_called = "batch_size global_batch_size bs",
        .help = "The number of samples in one step, over all workers together.",
    },
    {
        KEY("train.epochs", INT, train.epochs),
        .fallback = "10",
        BITS_IF(length_decides, AS_LONG),
        RANGE(1, TDM__MAX_JOB_INT),
        .excludes = "train.steps",
        .also_called = "num_epochs max_epochs",
        .help = "The number of passes over the training set.",
    },
    {
        KEY("train.steps", INT, train.steps),
        .fallback_note = "derived from 'train.epochs'",
        BITS_IF(length_decides, AS_LONG),
        RANGE(1, TDM__MAX_JOB_INT),
        .excludes = "train.epochs",
        .also_called = "max_steps num_steps iterations",
        .help = "The number of steps to train, instead of a number of epochs.",
    },
    {
        KEY("train.label_smoothing", REAL, train.label_smoothing),
        .fallback = "0",
        BITS_IF(smooths_labels, IS_ABOVE_0),
        RANGE(0, 1),
        .max_open = true,
        .also_called = "smoothing label_smooth label_smoothing_factor",
        .help = "The fraction of each target that is spread evenly over all classes, or over all "
                "tokens. It affects the training loss but not the test loss.",
    },
    {
        KEY("train.l1", REAL, train.l1),
        .fallback = "0",
        BITS_IF(has_l1, IS_ABOVE_0),
        RANGE(0, INFINITY),
        .also_called = "l1_penalty l1_reg l1_regularization lasso",
        .help = "Adds this times the sum of |w| to the loss of each step, over the trained "
                "weights with two or more dimensions, so not over biases and gains. It affects "
                "the training loss but not the test loss.",
    },
    {
        KEY("train.l2", REAL, train.l2),
        .fallback = "0",
        BITS_IF(has_l2, IS_ABOVE_0),
        RANGE(0, INFINITY),
        .also_called = "l2_penalty l2_reg l2_regularization ridge",
        .help = "Adds this times the sum of w squared to the loss of each step, over the same "
                "weights as 'train.l1'. It affects the training loss but not the test loss. "
                "'optim.weight_decay' is cheaper and affects neither loss.",
    },
    {
        KEY("train.early_stop", MAP, train.early_stop),
        .fields = tdm__early_stop_keys,
        .field_count = TDM__EARLY_STOP_KEYS,
        .struct_bytes = sizeof(tdm_job_early_stop),
        .also_called = "early_stopping",
        .help = "Ends the run when the model has stopped improving on the test set.",
    },
    {
        KEY("train.bad_numbers", CHOICE, train.bad_numbers),
        .fallback = "stop",
        .choices = "stop | skip",
        .also_called = "nan on_nan skip_nan detect_anomaly",
        .help = "What happens when the loss or the gradient of a step contains a NaN or an "
                "infinity. stop ends the run and reports the op that produced it. skip leaves "
                "the model unchanged and continues with the next batch.",
    },
    {
        KEY("train.bad_numbers_most", INT, train.max_bad_numbers),
        .fallback = "10",
        RANGE(1, TDM__MAX_JOB_INT),
        .help = "With 'train.bad_numbers: skip': the maximum number of consecutive skipped "
                "steps (with 'sync.kind: local', of rounds). If one more is non-finite, the run "
                "ends as with stop.",
    },
};

/* The rows of keys_optim.c, keys_sync.c and keys_elastic.c are between first_keys and last_keys. */
static const tdm_job_key last_keys[] = {
    {
        KEY("parallel.lanes", INT, parallel.lanes),
        .fallback = "auto",
        .decides_bits = true,
        RANGE(1, 65536),
        .form = TDM_JOB_FORM_POWER_OF_TWO,
        .word = "auto",
        .also_called = "workers world_size ranks num_workers",
        .help = "The number of slices (lanes) of each batch. Workers share the lanes, so there "
                "can be at most as many workers as lanes. The trained bits depend on the number "
                "of lanes, never on the number of workers. auto is computed from the job alone: "
                "the largest power of two, up to 8, that leaves each lane at least 64 rows (32 "
                "for models with convolutions other than resnet; 256 tokens for token models). "
                "It is two if each of two lanes has a quarter of that; this does not apply to "
                "resnet.",
    },
    {
        KEY("parallel.zero", INT, parallel.zero),
        .fallback = "0",
        RANGE(0, 3),
        .also_called = "zero_stage stage zero_optimization fsdp sharding",
        .help = "ZeRO stage: what the ranks of several hosts shard instead of replicating. 1 "
                "shards the optimiser state, 2 the gradients as well, 3 the parameters as well, "
                "which are gathered block by block just before they are needed. Ranks on one "
                "host always share one copy of parameters and state. It affects memory and "
                "speed, not the result.",
    },
    {
        KEY("parallel.offload", DIR, parallel.offload),
        .also_called = "offload_optimizer offload_path nvme_path",
        .help = "A directory in which the optimiser state is stored in a file instead of memory, "
                "for models that do not fit into memory. Each step then depends on the speed of "
                "the disk.",
    },
    {
        KEY("parallel.balance", CHOICE, parallel.balance),
        .fallback = "off",
        .choices = "off | weights | feedback",
        .also_called = "load_balancing placement",
        .help = "How many lanes each rank executes. off gives all ranks the same number, or "
                "numbers that differ by one; weights uses 'parallel.weights'; feedback measures "
                "the time each rank takes per lane and moves lanes from slow ranks to fast ones. "
                "Replicas move as a whole, and only between ranks of one host. It affects speed, "
                "not the result.",
    },
    {
        KEY("parallel.weights", INT_LIST, parallel.weights),
        .fallback = "[]",
        RANGE(1, 1000000),
        .max_count = 4096,
        .help = "With 'parallel.balance: weights': the relative speed of each rank, in rank "
                "order. The empty list uses the number of CPUs of each rank.",
    },
    {
        KEY("parallel.reduce", CHOICE, parallel.reduce),
        .fallback = "tree",
        .decides_bits = true,
        .choices = "tree | ring | central",
        .also_called = "allreduce reduction algorithm",
        .help = "How gradients are added over the ranks. tree adds lanes in one fixed order, so "
                "that the result does not depend on the number of ranks. ring and central (rank "
                "0 adds the gradients of all ranks) exist for comparison: their bits depend on "
                "the number of ranks.",
    },
    {
        KEY("parallel.bucket", INT, parallel.bucket),
        .fallback = "auto",
        RANGE(16384, 1073741824),
        .form = TDM_JOB_FORM_SIZE,
        .word = "auto",
        .also_called = "bucket_cap_mb bucket_size reduce_bucket_size fusion_threshold",
        .help = "The size in bytes of the buckets in which gradients are sent between hosts. "
                "Each bucket is sent as soon as the backward pass has filled it. auto selects a "
                "size by measuring the network. It affects speed, not the result.",
    },
    {
        KEY("parallel.overlap", BOOL, parallel.overlap),
        .fallback = "true",
        .also_called = "overlap_comm",
        .help = "Whether buckets are sent during the backward pass, and new parameters during "
                "the next forward pass; otherwise computation and communication alternate. It "
                "affects speed, not the result.",
    },
    {
        KEY("parallel.sync_batchnorm", BOOL, parallel.sync_batchnorm),
        .fallback = "false",
        .decides_bits = true,
        .also_called = "sync_bn sync_batch_norm synchronized_batchnorm",
        .help = "Whether batch norm computes mean and variance over the whole batch; otherwise "
                "over the rows of each lane. A rank then executes its lanes in lockstep and "
                "needs memory for the activations of all of them.",
    },
    {
        KEY("compute.backend", CHOICE, compute.backend),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | ref",
        .also_called = "device",
        .help = "The kernels. auto uses the fastest ones for this machine; ref is plain C, slow "
                "and easy to read, for comparison.",
    },
    {
        KEY("compute.numerics", CHOICE, compute.numerics),
        .fallback = "portable",
        .decides_bits = true,
        .choices = "portable | vendor",
        .also_called = "deterministic use_deterministic_algorithms mkldnn onednn",
        .help = "The kernels for matrix products and convolutions. portable: Tandem's kernels; "
                "the results depend only on the job and the data and have the same bits on every "
                "CPU, with every compiler and any number of threads. vendor: oneDNN; the bits "
                "depend on the CPU, the version of oneDNN and the number of threads.",
    },
    {
        KEY("compute.threads", INT, compute.threads),
        .fallback = "auto",
        BITS_IF(is_vendor, IS_VENDOR),
        RANGE(1, TDM_MAX_THREADS),
        .word = "auto",
        .also_called = "num_threads intra_op_threads omp_num_threads",
        .help = "The number of compute threads of each worker. auto divides the CPUs of a host "
                "among its workers, so that CPUs beyond the number of lanes are used as well. "
                "The result is the same for every number, except with 'compute.numerics: "
                "vendor', where it depends on it and auto is 1.",
    },
    {
        KEY("compute.precision", CHOICE, compute.precision),
        .fallback = "f32",
        .decides_bits = true,
        .choices = "f32 | bf16",
        .also_called = "dtype amp mixed_precision autocast bf16 fp16",
        .help = "The precision of matrix products and convolutions. bf16 rounds their inputs to "
                "16 bits and accumulates in 32; parameters, gradients and everything else stay "
                "f32. It needs less memory, and much less time on CPUs with bf16 instructions; "
                "see precision.md.",
    },
    {
        KEY("memory.recompute", CHOICE, memory.recompute),
        .fallback = "none",
        .choices = "none | blocks | full",
        .also_called = "gradient_checkpointing activation_checkpointing checkpoint_activations "
                       "recompute remat",
        .help = "Which activations the backward pass recomputes instead of keeping them: less "
                "memory for more arithmetic, with bit-identical results. blocks keeps what "
                "passes from one block of the model to the next; full keeps as little as "
                "possible. 'tandem inspect JOB' shows the cost of each; see memory.md.",
    },
    {
        KEY("memory.limit", INT, memory.limit),
        .fallback = "auto",
        RANGE(1, TDM__MAX_JOB_INT),
        .form = TDM_JOB_FORM_SIZE,
        .word = "auto",
        .also_called = "max_memory memory_limit",
        .help = "The maximum number of bytes that training may use. A job that needs more is "
                "refused before it starts, with suggestions that make it fit. auto is the memory "
                "that is available on the machine.",
    },
    {
        KEY("comm.transport", CHOICE, comm.transport),
        .fallback = "auto",
        .choices = "auto | shm | tcp | ucx | mpi",
        .also_called = "backend network",
        .help = "The transport between ranks. auto uses shared memory within a host and TCP "
                "between hosts; shm, tcp, ucx and mpi use one transport for all. It affects "
                "speed, not the result. ucx (for RDMA) and mpi neither authenticate nor encrypt "
                "their traffic.",
    },
    {
        KEY("comm.streams", INT, comm.streams),
        .fallback = "1",
        RANGE(1, 64),
        .also_called = "connections parallel_streams",
        .help = "The number of connections between each pair of ranks on different hosts. More "
                "than 1 helps if a single connection does not saturate the link.",
    },
    {
        KEY("comm.security", CHOICE, comm.security),
        .fallback = "auto",
        .choices = "auto | off | psk | tls",
        .also_called = "encryption secure",
        .help = "How connections between ranks are protected. Every connection is authenticated "
                "with the secret of the run, whatever the value. auto encrypts connections "
                "between hosts with TLS 1.3; psk encrypts all TCP connections with a key derived "
                "from the secret; tls encrypts them with the certificates in comm.tls_*; off "
                "encrypts nothing. TANDEM_SECURITY overrides it.",
    },
    {
        KEY("comm.tls_certificate", PATH, comm.tls_certificate),
        .also_called = "tls_cert",
        .help = "For 'comm.security: tls': the certificate of this host, in PEM. Its subject "
                "alternative names must contain the name or the address of the host.",
    },
    {
        KEY("comm.tls_key", PATH, comm.tls_key),
        .also_called = "tls_private_key",
        .help = "For 'comm.security: tls': the private key of 'comm.tls_certificate', in PEM.",
    },
    {
        KEY("comm.tls_authority", PATH, comm.tls_authority),
        .also_called = "tls_ca",
        .help = "For 'comm.security: tls': the certificate of the authority that signed the "
                "certificates of all hosts, in PEM.",
    },
    {
        KEY("eval.every_epochs", INT, eval.every_epochs),
        .fallback = "1",
        BITS_IF(tdm__schedule_evaluates, EVALUATES),
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "never",
        .help = "The number of epochs between evaluations on the test set. never evaluates only "
                "at the end.",
    },
    {
        KEY("eval.every_steps", INT, eval.every_steps),
        .fallback = "never",
        BITS_IF(tdm__schedule_evaluates, EVALUATES),
        RANGE(1, TDM__MAX_JOB_INT),
        .word = "never",
        .also_called = "eval_interval eval_steps",
        .help = "The number of steps between evaluations on the test set, in addition to "
                "'eval.every_epochs'.",
    },
    {
        KEY("eval.batch", INT, eval.batch),
        .fallback = "256",
        BITS_IF(tdm__schedule_evaluates, EVALUATES),
        RANGE(1, 2147483647),
        .also_called = "eval_batch_size",
        .help = "The number of samples evaluated at a time; for a text, the number of tokens, "
                "rounded to whole windows. It affects speed and memory, not the result.",
    },
    {
        KEY("eval.weights", CHOICE, eval.weights),
        .fallback = "auto",
        BITS_IF(tdm__schedule_evaluates, EVALUATES),
        .choices = "auto | ema | raw",
        .help = "Which weights are evaluated and used for predictions: ema is their moving "
                "average (see 'optim.ema'), raw the weights themselves. auto uses the average if "
                "there is one.",
    },
    {
        KEY("run.dir", DIR, run.dir),
        .fallback = "runs",
        .also_called = "output_dir out_dir output",
        .help = "The directory in which each run gets its own directory; it is created if "
                "needed. Unlike all other paths, it is relative to the current directory, even "
                "in a job file.",
    },
    {
        KEY("run.log_every_steps", INT, run.log_every_steps),
        .fallback = "10",
        RANGE(1, TDM__MAX_JOB_INT),
        .also_called = "log_steps logging_steps log_every",
        .help = "The number of steps between lines in metrics.jsonl.",
    },
};

size_t tdm_job_key_count(void)
{
    return COUNT(first_keys) + tdm__optim_key_count + tdm__table_key_count + tdm__sync_key_count +
           tdm__elastic_key_count + COUNT(last_keys);
}

const tdm_job_key *tdm_job_key_at(size_t index)
{
    if (index < COUNT(first_keys)) return &first_keys[index];
    index -= COUNT(first_keys);
    if (index < tdm__optim_key_count) return &tdm__optim_keys[index];
    index -= tdm__optim_key_count;
    if (index < tdm__table_key_count) return &tdm__table_keys[index];
    index -= tdm__table_key_count;
    if (index < tdm__sync_key_count) return &tdm__sync_keys[index];
    index -= tdm__sync_key_count;
    if (index < tdm__elastic_key_count) return &tdm__elastic_keys[index];
    index -= tdm__elastic_key_count;
    return index < COUNT(last_keys) ? &last_keys[index] : NULL;
}

size_t tdm__job_group_count(void)
{
    return sizeof(groups) / sizeof(groups[0]);
}

const tdm__job_group *tdm__job_group_at(size_t index)
{
    return index < tdm__job_group_count() ? &groups[index] : NULL;
}

bool tdm__job_group_has(const tdm__job_group *group, const tdm_job_key *key)
{
    size_t length = strlen(group->name);
    if (length == 0) return strchr(key->path, '.') == NULL;
    return strncmp(key->path, group->name, length) == 0 && key->path[length] == '.';
}

const char *tdm_job_transport_name(int transport)
{
    static const char *const names[] = {[TDM_JOB_TRANSPORT_AUTO] = "auto",
                                        [TDM_JOB_TRANSPORT_SHM] = "shm",
                                        [TDM_JOB_TRANSPORT_TCP] = "tcp",
                                        [TDM_JOB_TRANSPORT_UCX] = "ucx",
                                        [TDM_JOB_TRANSPORT_MPI] = "mpi"};
    return names[transport];
}
