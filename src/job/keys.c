/*
 * keys.c: the one table of keys. The rows of the optimiser and its schedule are in keys_optim.c.
 *
 * Parsing, checking, defaults, `tandem job keys` and docs/job-file.md all come from these rows: to
 * add a key, add its field to tdm_job and its row here, and nothing else. Rows of one group stand
 * together, in the order in which they are shown and hashed. `help` is written for someone who has
 * never seen the key; its first sentence must stand alone.
 */
#include <math.h>
#include <string.h>

#include "job/internal.h"

#define FIELD(member) offsetof(tdm_job, member)
#define AS_LONG "when the schedule is as long as the training"
#define EVALUATES "when the schedule is reduce_on_plateau"
#define IS_LIBRARY "when the model is a library"
#define IS_VENDOR "when compute.numerics is vendor"
#define IS_ABOVE_0 "when it is above 0"

static const tdm__job_group groups[] = {
    {"", "What the job is called, where its random numbers begin, and the layers of a network of "
         "one's own."},
    {"model", "The network that is trained."},
    {"data", "The samples: where they lie and how they are read."},
    {"train", "How much is trained, and in which portions."},
    {"optim", "The optimiser, which turns gradients into steps."},
    {"schedule", "How the learning rate changes over the steps."},
    {"parallel", "How a step is cut up, so that many workers can share it."},
    {"compute", "Which code does the arithmetic."},
    {"memory", "How much memory training may use."},
    {"comm", "How ranks talk to each other."},
    {"eval", "Measuring the model on the test set while it is trained."},
    {"checkpoint", "Saving the state, so that a run can be continued after any interruption."},
    {"elastic", "Who may come and go while a run goes on, and what happens when somebody dies."},
    {"etcd", "The servers of 'store: etcd'."},
    {"run", "Where results go."},
};

static bool is_library(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LIBRARY;
}

static bool is_made_of_layers(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LAYERS;
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
        .path = "name",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(name),
        .fallback_note = "the job file's name without its extension",
        .form = TDM_JOB_FORM_NAME,
        .also_called = "job_name title",
        .help = "What the job is called. The folders of its runs begin with it.",
    },
    {
        .path = "seed",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(seed),
        .fallback = "1",
        .decides_bits = true,
        .min = 0,
        .max = TDM__MAX_JOB_INT,
        .also_called = "random_seed random_state",
        .help = "Where all random numbers begin: first weights, order of samples, dropout, the "
                "split by 'data.test_fraction'. The same seed gives the same run.",
    },
    {
        .path = "layers",
        .type = TDM_JOB_KEY_LAYERS,
        .offset = FIELD(layers),
        .decides_bits = true,
        .decides_when = is_made_of_layers,
        .decides_note = "when 'model.kind' is layers",
        .max_count = TDM__LAYERS_LISTED,
        .fields = tdm__layer_keys,
        .field_count = TDM_JOB_LAYER_KIND_COUNT,
        .struct_bytes = sizeof(tdm_job_layer),
        .help =
            "A network of one's own: the layers that a sample goes through, one after the other. "
            "An entry is the name of a layer, with its settings behind a colon, where it has "
            "any. The last layer, to the number of classes, is added unless a layer has the size "
            "classes. It stands for 'model.kind' layers.",
    },
    {
        .path = "model.kind",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(model.kind),
        .fallback = "mlp",
        .fallback_note = "mlp, or layers where 'layers' is given",
        .decides_bits = true,
        .choices = "mlp | cnn | resnet | gpt | library | layers",
        .also_called = "type architecture",
        .help =
            "The architecture. mlp is a multi-layer perceptron that classifies. cnn is a small "
            "convolutional network for images, resnet the residual network of ResNet-18 and its "
            "larger kin. "
            "gpt is the transformer of GPT-2, which predicts the next token of a text. library is "
            "a model of your own, from the shared object that 'model.library' names. layers is what "
            "the list 'layers' says.",
    },
    {
        .path = "model.hidden",
        .type = TDM_JOB_KEY_INT_LIST,
        .offset = FIELD(model.hidden),
        .fallback = "[128]",
        .decides_bits = true,
        .min = 1,
        .max = 1048576,
        .max_count = 64,
        .also_called = "hidden_size hidden_sizes hidden_layers units",
        .help = "The widths of the hidden layers, from the input to the output. The empty list [] "
                "makes a linear classifier.",
    },
    {
        .path = "model.channels",
        .type = TDM_JOB_KEY_INT_LIST,
        .offset = FIELD(model.channels),
        .fallback = "[32, 64]",
        .decides_bits = true,
        .min = 1,
        .max = 65536,
        .max_count = 16,
        .also_called = "filters conv_channels",
        .help =
            "For cnn: the channels of its convolutions, each of which is 3 x 3 and followed by a "
            "2 x 2 max pool. The layers of model.hidden come behind them.",
    },
    {
        .path = "model.depth",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(model.depth),
        .fallback = "18",
        .decides_bits = true,
        .choices = "18 | 34 | 50",
        .help = "For resnet: how many layers it has, in He's numbering.",
    },
    {
        .path = "model.stem",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(model.stem),
        .fallback = "cifar",
        .decides_bits = true,
        .choices = "cifar | imagenet",
        .help =
            "For resnet: how it begins. cifar, for small images, is a 3 x 3 convolution; imagenet, "
            "for large ones, a 7 x 7 convolution of stride 2 and a max pool.",
    },
    {
        .path = "model.activation",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(model.activation),
        .fallback = "relu",
        .decides_bits = true,
        .choices = "relu | gelu | tanh | sigmoid",
        .help = "The function after each hidden layer.",
    },
    {
        .path = "model.dropout",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(model.dropout),
        .fallback = "0",
        .decides_bits = true,
        .min = 0,
        .max = 1,
        .max_open = true,
        .help = "The share of hidden values set to zero at random while training.",
    },
    {
        .path = "model.preset",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(model.preset),
        .fallback = "none",
        .decides_bits = true,
        .choices = "none | gpt2 | gpt2-medium | gpt2-large | gpt2-xl",
        .also_called = "model_name size",
        .help = "For gpt: a published size. It decides 'model.layers', 'model.width', "
                "'model.heads', 'model.context' and 'model.vocabulary', where these are not given.",
    },
    {
        .path = "model.layers",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(model.layers),
        .fallback = "4",
        .decides_bits = true,
        .min = 1,
        .max = 1024,
        .also_called = "n_layer n_layers num_layers num_hidden_layers depth blocks",
        .not_list = "a list of layers stands at the top level of the job: move 'layers:' out of "
                    "'model:'",
        .help = "For gpt: how many blocks of attention and perceptron stand on each other.",
    },
    {
        .path = "model.width",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(model.width),
        .fallback = "128",
        .decides_bits = true,
        .min = 1,
        .max = 65536,
        .also_called = "n_embd d_model embedding dim channels",
        .help = "For gpt: how many numbers stand for a token between the blocks. It must be a "
                "multiple of 'model.heads'.",
    },
    {
        .path = "model.heads",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(model.heads),
        .fallback = "4",
        .decides_bits = true,
        .min = 1,
        .max = 1024,
        .also_called = "n_head n_heads num_heads num_attention_heads",
        .help = "For gpt: into how many parts an attention is divided, each of which looks at "
                "something else.",
    },
    {
        .path = "model.context",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(model.context),
        .fallback = "256",
        .decides_bits = true,
        .min = 1,
        .max = 1048576,
        .also_called = "block_size context_length seq_len sequence_length n_ctx n_positions",
        .help =
            "For models of tokens: how many tokens the model sees at once, which is also the length of a "
            "training sample.",
    },
    {
        .path = "model.vocabulary",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(model.vocabulary),
        .fallback = "auto",
        .decides_bits = true,
        .min = 1,
        .max = 1048576,
        .word = "auto",
        .also_called = "vocab_size vocab",
        .help =
            "For models of tokens: how many different tokens there can be. auto takes as many as the "
            "training text has characters; with a number there may be spare ones.",
    },
    {
        .path = "model.init_from",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(model.init_from),
        .decides_bits = true,
        .also_called = "pretrained weights",
        .help = "A safetensors file: parameters start from its values of the same name, where it "
                "has them, instead of random ones.",
    },
    {
        .path = "model.library",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(model.library),
        .decides_bits = true,
        .decides_when = is_library,
        .decides_note = IS_LIBRARY,
        .also_called = "plugin shared_object so",
        .help = "For library: the shared object that has the model. It is code, and runs with your "
                "rights: take only files you trust.",
    },
    {
        .path = "model.library_sha256",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(model.library_sha256),
        .fallback_note = "that of the file, when the job is read",
        .decides_bits = true,
        .decides_when = is_library,
        .decides_note = IS_LIBRARY,
        .form = TDM_JOB_FORM_SHA256,
        .needs = "model.library",
        .also_called = "library_hash sha256",
        .help = "The SHA-256 of the file of 'model.library'. Where it is given, no other file is "
                "taken; a run's own job.yaml has it.",
    },
    {
        .path = "model.options",
        .type = TDM_JOB_KEY_OPTIONS,
        .offset = FIELD(model.options),
        .decides_bits = true,
        .decides_when = is_library,
        .decides_note = IS_LIBRARY,
        .max_count = 64,
        .also_called = "args kwargs params settings",
        .help = "For library: what its model is told, by names that it chose, such as {width: 64}. "
                "One of them can be set alone: '--set model.options.width=64'.",
    },
    {
        .path = "data.train",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(data.train),
        .required = true,
        .decides_bits = true,
        .also_called = "path file train_path train_file",
        .help = "The file of training samples: CSV, IDX images, or for models of tokens a text. "
                "It may be packed with gzip.",
    },
    {
        .path = "data.train_labels",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(data.train_labels),
        .decides_bits = true,
        .also_called = "labels",
        .help = "For IDX: the file of labels that belongs to 'data.train'. A CSV file has its "
                "labels in a column instead, see 'data.label'.",
    },
    {
        .path = "data.test",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(data.test),
        .decides_bits = true,
        .decides_when = tdm__schedule_evaluates,
        .decides_note = EVALUATES,
        .excludes = "data.test_fraction",
        .also_called = "validation valid val test_path test_file",
        .help = "The file of test samples, on which the model is measured and never trained.",
    },
    {
        .path = "data.test_labels",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(data.test_labels),
        .needs = "data.test",
        .help = "For IDX: the file of labels that belongs to 'data.test'.",
    },
    {
        .path = "data.test_fraction",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(data.test_fraction),
        .fallback = "0",
        .decides_bits = true,
        .min = 0,
        .max = 1,
        .max_open = true,
        .excludes = "data.test",
        .also_called = "split test_split validation_split",
        .help = "The share of 'data.train' that is held back as the test set, chosen by 'seed'; of "
                "a text its last part. 0 holds nothing back.",
    },
    {
        .path = "data.shape",
        .type = TDM_JOB_KEY_INT_LIST,
        .offset = FIELD(data.shape),
        .fallback = "[]",
        .fallback_note = "as the file says",
        .decides_bits = true,
        .min = 1,
        .max = 1048576,
        .max_count = 3,
        .also_called = "image_shape input_shape",
        .help = "The shape of a sample, when the file does not say it: [height, width] or [height, "
                "width, channels] for images in a table. The empty list takes what the file says.",
    },
    {
        .path = "data.format",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(data.format),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | csv | idx | text",
        .help = "The format of the data files. auto looks at their first bytes; for models of "
                "tokens it is text, which is read character by character.",
    },
    {
        .path = "data.header",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(data.header),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | yes | no",
        .help = "For CSV: whether the first row holds the names of the columns. auto takes it for "
                "one when a cell that should be a number is not.",
    },
    {
        .path = "data.label",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(data.label),
        .fallback = "last",
        .decides_bits = true,
        .also_called = "target label_column",
        .help =
            "For CSV: the column that holds the class: its name, its number counted from 1, "
            "or one of the words first, last and none. none is for files without classes, such as "
            "samples to predict.",
    },
    {
        .path = "data.delimiter",
        .type = TDM_JOB_KEY_STRING,
        .offset = FIELD(data.delimiter),
        .fallback = "\",\"",
        .decides_bits = true,
        .form = TDM_JOB_FORM_CHARACTER,
        .also_called = "separator sep",
        .help =
            "For CSV: what stands between two cells. In a job file a comma must stand in quotes.",
    },
    {
        .path = "data.normalise",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(data.normalise),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | none | scale | standard",
        .also_called = "normalize normalization scaling",
        .help =
            "How features are brought to a common size. scale divides bytes by 255 and other numbers "
            "by the largest; standard gives each column the mean 0 and the deviation 1 over the "
            "training samples, and switches off columns that never vary; none leaves them as they "
            "are. auto takes scale for images of bytes and standard for all else.",
    },
    {
        .path = "data.shuffle",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(data.shuffle),
        .fallback = "true",
        .decides_bits = true,
        .help = "Whether each epoch sees the samples in a new random order; otherwise it is the "
                "order of the file.",
    },
    {
        .path = "data.last_batch",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(data.last_batch),
        .fallback = "keep",
        .decides_bits = true,
        .choices = "keep | drop",
        .also_called = "drop_last",
        .help = "What happens to the samples left at the end of an epoch when they are fewer than "
                "a batch: keep trains on a smaller batch, drop passes over them.",
    },
    {
        .path = "train.batch",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(train.batch),
        .fallback = "32",
        .decides_bits = true,
        .min = 1,
        .max = 2147483647,
        .also_called = "batch_size global_batch_size bs",
        .help = "Samples in one step, over all workers together.",
    },
    {
        .path = "train.epochs",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(train.epochs),
        .fallback = "10",
        .decides_bits = true,
        .decides_when = tdm__schedule_is_as_long,
        .decides_note = AS_LONG,
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .excludes = "train.steps",
        .also_called = "num_epochs max_epochs",
        .help = "How many times the training set is gone through.",
    },
    {
        .path = "train.steps",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(train.steps),
        .fallback_note = "as many as 'train.epochs' takes",
        .decides_bits = true,
        .decides_when = tdm__schedule_is_as_long,
        .decides_note = AS_LONG,
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .excludes = "train.epochs",
        .also_called = "max_steps num_steps iterations",
        .help = "How many steps to train, in place of a number of epochs.",
    },
    {
        .path = "train.label_smoothing",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(train.label_smoothing),
        .fallback = "0",
        .decides_bits = true,
        .decides_when = smooths_labels,
        .decides_note = IS_ABOVE_0,
        .min = 0,
        .max = 1,
        .max_open = true,
        .also_called = "smoothing label_smooth label_smoothing_factor",
        .help = "The share of each target that is spread evenly over all classes, or over all "
                "tokens. It is part of the loss that training reports, and not of the test loss.",
    },
    {
        .path = "train.l1",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(train.l1),
        .fallback = "0",
        .decides_bits = true,
        .decides_when = has_l1,
        .decides_note = IS_ABOVE_0,
        .min = 0,
        .max = INFINITY,
        .also_called = "l1_penalty l1_reg l1_regularization lasso",
        .help = "Adds this times the sum of |w| to the loss of each step, over the trained weights "
                "of two and more dimensions, so not over biases and gains. It is part of the loss "
                "that training reports, and not of the test loss.",
    },
    {
        .path = "train.l2",
        .type = TDM_JOB_KEY_REAL,
        .offset = FIELD(train.l2),
        .fallback = "0",
        .decides_bits = true,
        .decides_when = has_l2,
        .decides_note = IS_ABOVE_0,
        .min = 0,
        .max = INFINITY,
        .also_called = "l2_penalty l2_reg l2_regularization ridge",
        .help = "Adds this times the sum of w squared to the loss of each step, over the same "
                "weights as 'train.l1'. It is part of the loss that training reports, and not of "
                "the test loss; 'optim.weight_decay' is cheaper, and is no part of either.",
    },
    {
        .path = "train.early_stop",
        .type = TDM_JOB_KEY_MAP,
        .offset = FIELD(train.early_stop),
        .fields = tdm__early_stop_keys,
        .field_count = TDM__EARLY_STOP_KEYS,
        .struct_bytes = sizeof(tdm_job_early_stop),
        .also_called = "early_stopping",
        .help = "Ends the training when the model has stopped to improve on the test set.",
    },
    {
        .path = "train.bad_numbers",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(train.bad_numbers),
        .fallback = "stop",
        .choices = "stop | skip",
        .also_called = "nan on_nan skip_nan detect_anomaly",
        .help = "What happens when the loss or the gradient of a step holds a NaN or an infinity. "
                "stop ends the run and names the op that made it. skip leaves the model as it is "
                "and goes on with the next batch.",
    },
    {
        .path = "train.bad_numbers_most",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(train.max_bad_numbers),
        .fallback = "10",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .help = "With 'train.bad_numbers: skip': how many steps in a row may be skipped. One more, "
                "and the run ends as with stop.",
    },
};

/* The rows of optim and schedule stand between these two. */
static const tdm_job_key last_keys[] = {
    {
        .path = "parallel.lanes",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(parallel.lanes),
        .fallback = "auto",
        .decides_bits = true,
        .min = 1,
        .max = 65536,
        .form = TDM_JOB_FORM_POWER_OF_TWO,
        .word = "auto",
        .also_called = "workers world_size ranks num_workers",
        .help = "Into how many slices the batch of each step is cut. Workers share the lanes, so "
                "there can be at most as many workers as lanes; the trained bits depend on the "
                "lanes and never on the workers. auto chooses from the job alone: the largest "
                "power of two, up to 8, with which a lane has 64 rows (16 of a model with "
                "convolutions other than resnet, and of tokens 256); or two lanes, when each has a "
                "quarter of that (but for resnet).",
    },
    {
        .path = "parallel.zero",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(parallel.zero),
        .fallback = "0",
        .min = 0,
        .max = 3,
        .also_called = "zero_stage stage zero_optimization fsdp sharding",
        .help =
            "What the ranks of several hosts share out instead of each keeping all of it: 1 the "
            "optimiser's state, 2 the gradients as well, 3 the parameters as well, which are "
            "gathered block by block just before they are needed. Ranks of one host have "
            "parameters and state in common with any value. It decides memory and speed, not "
            "the result.",
    },
    {
        .path = "parallel.offload",
        .type = TDM_JOB_KEY_DIR,
        .offset = FIELD(parallel.offload),
        .also_called = "offload_optimizer offload_path nvme_path",
        .help = "A folder in which the optimiser's state lies in a file instead of memory, for "
                "models that are larger than that. The disk's speed becomes part of each step.",
    },
    {
        .path = "parallel.balance",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(parallel.balance),
        .fallback = "off",
        .choices = "off | weights | feedback",
        .also_called = "load_balancing placement",
        .help = "How many lanes each rank executes. off gives all the same number, or one more or "
                "less; weights goes by 'parallel.weights'; feedback measures how long each rank "
                "takes for a lane, and moves lanes from slow ranks to fast ones. It decides speed, "
                "not the result.",
    },
    {
        .path = "parallel.weights",
        .type = TDM_JOB_KEY_INT_LIST,
        .offset = FIELD(parallel.weights),
        .fallback = "[]",
        .min = 1,
        .max = 1000000,
        .max_count = 4096,
        .help = "With 'parallel.balance: weights': how fast each rank is compared with the others, "
                "in order of the ranks. An empty list goes by how many processors each rank has.",
    },
    {
        .path = "parallel.reduce",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(parallel.reduce),
        .fallback = "tree",
        .decides_bits = true,
        .choices = "tree | ring | central",
        .also_called = "allreduce reduction algorithm",
        .help = "How gradients are added over the ranks. tree adds lanes in one fixed order, so "
                "that the result does not depend on the ranks. ring and central (rank 0 adds what "
                "the others send) are there to compare with: with them, each number of ranks gives "
                "other bits.",
    },
    {
        .path = "parallel.bucket",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(parallel.bucket),
        .fallback = "auto",
        .min = 16384,
        .max = 1073741824,
        .form = TDM_JOB_FORM_SIZE,
        .word = "auto",
        .also_called = "bucket_cap_mb bucket_size reduce_bucket_size fusion_threshold",
        .help = "Between hosts, gradients travel in buckets of so many bytes, each as soon as the "
                "backward pass has filled it. auto measures what suits the network. It decides "
                "speed, not the result.",
    },
    {
        .path = "parallel.overlap",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(parallel.overlap),
        .fallback = "true",
        .also_called = "overlap_comm",
        .help = "Whether buckets travel while the backward pass goes on, and new parameters while "
                "the next forward pass does; otherwise each waits for the other. It decides speed, "
                "not the result.",
    },
    {
        .path = "parallel.sync_batchnorm",
        .type = TDM_JOB_KEY_BOOL,
        .offset = FIELD(parallel.sync_batchnorm),
        .fallback = "false",
        .decides_bits = true,
        .also_called = "sync_bn sync_batch_norm synchronized_batchnorm",
        .help = "Whether a batch norm takes its mean and variance over the whole batch; otherwise "
                "over the rows of each lane. A rank then executes its lanes side by side, which "
                "takes memory for the activations of each.",
    },
    {
        .path = "compute.backend",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(compute.backend),
        .fallback = "auto",
        .decides_bits = true,
        .choices = "auto | ref",
        .also_called = "device",
        .help = "The kernels. auto takes the fastest for this machine; ref is plain C, slow and "
                "easy to read, to compare with.",
    },
    {
        .path = "compute.numerics",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(compute.numerics),
        .fallback = "portable",
        .decides_bits = true,
        .choices = "portable | vendor",
        .also_called = "deterministic use_deterministic_algorithms mkldnn onednn",
        .help = "Whose kernels compute matrix products and convolutions. portable: Tandem's, whose "
                "results are a function of the job and the data alone: the same bits on every CPU, "
                "number of threads and compiler. vendor: oneDNN's, whose bits depend on the CPU, "
                "the version of oneDNN and the number of threads.",
    },
    {
        .path = "compute.threads",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(compute.threads),
        .fallback = "auto",
        .decides_bits = true,
        .decides_when = is_vendor,
        .decides_note = IS_VENDOR,
        .min = 1,
        .max = TDM_MAX_THREADS,
        .word = "auto",
        .also_called = "num_threads intra_op_threads omp_num_threads",
        .help = "How many threads each worker computes with. auto shares the CPUs of a host among "
                "its workers, so that CPUs beyond the number of lanes help as well. The result is "
                "the same for every number; with compute.numerics vendor it is part of the result, "
                "and auto is 1.",
    },
    {
        .path = "compute.precision",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(compute.precision),
        .fallback = "f32",
        .decides_bits = true,
        .choices = "f32 | bf16",
        .also_called = "dtype amp mixed_precision autocast bf16 fp16",
        .help = "The numbers that matrix products and convolutions are made of. bf16 rounds their "
                "inputs to 16 bits and adds up in 32; parameters, gradients and all else stay f32. "
                "It takes less memory, and much less time on processors that have instructions for "
                "it; see precision.md.",
    },
    {
        .path = "memory.recompute",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(memory.recompute),
        .fallback = "none",
        .choices = "none | blocks | full",
        .also_called = "gradient_checkpointing activation_checkpointing checkpoint_activations "
                       "recompute remat",
        .help = "Which activations the backward pass computes again instead of keeping them: less "
                "memory for more arithmetic, and the same result, bit for bit. blocks keeps what "
                "passes from one block of the model to the next; full keeps the least it can. "
                "'tandem inspect JOB' shows what each costs; see memory.md.",
    },
    {
        .path = "memory.limit",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(memory.limit),
        .fallback = "auto",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .form = TDM_JOB_FORM_SIZE,
        .word = "auto",
        .also_called = "max_memory memory_limit",
        .help = "The most bytes that training may need. A job that needs more is refused before it "
                "starts, with what would make it fit. auto is what the machine has to offer.",
    },
    {
        .path = "comm.transport",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(comm.transport),
        .fallback = "auto",
        .choices = "auto | shm | tcp | ucx | mpi",
        .also_called = "backend network",
        .help = "What carries bytes between ranks. auto takes shared memory within a host and TCP "
                "between hosts; shm, tcp, ucx and mpi take one for all. It decides speed, not the "
                "result. ucx (for RDMA) and mpi neither authenticate nor encrypt what they carry.",
    },
    {
        .path = "comm.streams",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(comm.streams),
        .fallback = "1",
        .min = 1,
        .max = 64,
        .also_called = "connections parallel_streams",
        .help = "How many connections each pair of ranks on different hosts has. More than 1 helps "
                "where one connection does not fill the link.",
    },
    {
        .path = "comm.security",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(comm.security),
        .fallback = "auto",
        .choices = "auto | off | psk | tls",
        .also_called = "encryption secure",
        .help =
            "How connections between ranks are protected. All prove that they know the run's "
            "secret. auto then encrypts, by TLS 1.3, whatever leaves the host; psk encrypts all "
            "TCP connections, by a key that is derived from the secret; tls by the certificates of "
            "comm.tls_*; off none. TANDEM_SECURITY overrides it.",
    },
    {
        .path = "comm.tls_certificate",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(comm.tls_certificate),
        .also_called = "tls_cert",
        .help =
            "For 'comm.security: tls': this host's certificate, in PEM. Its subject alternative "
            "names must have the host's name or its address.",
    },
    {
        .path = "comm.tls_key",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(comm.tls_key),
        .also_called = "tls_private_key",
        .help = "For 'comm.security: tls': the private key of comm.tls_certificate, in PEM.",
    },
    {
        .path = "comm.tls_authority",
        .type = TDM_JOB_KEY_PATH,
        .offset = FIELD(comm.tls_authority),
        .also_called = "tls_ca",
        .help = "For 'comm.security: tls': the certificate of the authority, in PEM, that all "
                "certificates must come from.",
    },
    {
        .path = "eval.every_epochs",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(eval.every_epochs),
        .fallback = "1",
        .decides_bits = true,
        .decides_when = tdm__schedule_evaluates,
        .decides_note = EVALUATES,
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .help = "After how many epochs the model is measured on the test set. never measures it "
                "only at the end.",
    },
    {
        .path = "eval.every_steps",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(eval.every_steps),
        .fallback = "never",
        .decides_bits = true,
        .decides_when = tdm__schedule_evaluates,
        .decides_note = EVALUATES,
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .word = "never",
        .also_called = "eval_interval eval_steps",
        .help = "After how many steps the model is measured on the test set, besides the times of "
                "'eval.every_epochs'.",
    },
    {
        .path = "eval.batch",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(eval.batch),
        .fallback = "256",
        .decides_bits = true,
        .decides_when = tdm__schedule_evaluates,
        .decides_note = EVALUATES,
        .min = 1,
        .max = 2147483647,
        .also_called = "eval_batch_size",
        .help = "Samples measured at a time; of a text it counts tokens, in whole windows. It "
                "decides speed and memory, not the result.",
    },
    {
        .path = "eval.weights",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = FIELD(eval.weights),
        .fallback = "auto",
        .decides_bits = true,
        .decides_when = tdm__schedule_evaluates,
        .decides_note = EVALUATES,
        .choices = "auto | ema | raw",
        .help = "Which weights are measured, and predict: ema is their moving average (see "
                "'optim.ema'), raw the weights themselves. auto takes the average where there is "
                "one.",
    },
    {
        .path = "run.dir",
        .type = TDM_JOB_KEY_DIR,
        .offset = FIELD(run.dir),
        .fallback = "runs",
        .also_called = "output_dir out_dir output",
        .help = "The folder in which each run gets a folder of its own; it is made when needed. "
                "Unlike all other paths it is relative to the current folder, even in a job file.",
    },
    {
        .path = "run.log_every_steps",
        .type = TDM_JOB_KEY_INT,
        .offset = FIELD(run.log_every_steps),
        .fallback = "10",
        .min = 1,
        .max = TDM__MAX_JOB_INT,
        .also_called = "log_steps logging_steps log_every",
        .help = "After how many steps a line is added to the run's metrics.jsonl.",
    },
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

size_t tdm_job_key_count(void)
{
    return COUNT(first_keys) + tdm__optim_key_count + tdm__elastic_key_count + COUNT(last_keys);
}

const tdm_job_key *tdm_job_key_at(size_t index)
{
    if (index < COUNT(first_keys)) return &first_keys[index];
    index -= COUNT(first_keys);
    if (index < tdm__optim_key_count) return &tdm__optim_keys[index];
    index -= tdm__optim_key_count;
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
