/*
 * keys_layers.c: the kinds of layers that a job's list may name, and the settings of each.
 *
 * A kind is a row like that of any mapping: its settings are rows too, and lie in a tdm_job_layer.
 * Reading, defaults, suggestions, what is shown and the reference page all come from here; what a
 * layer computes is in the nn room. To add a kind, add it to tdm_job_layer_kind, here, and there.
 * A kind whose first setting is required may be given with that alone: 'linear: 64'.
 */
#include <math.h>

#include "job/internal.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const tdm_job_key linear_keys[] = {
    {
        .path = "layers.linear.features",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, size),
        .required = true,
        .min = 1,
        .max = 1048576,
        .word = "classes",
        .also_called = "units out_features size width",
        .help = "How many numbers come out; classes means as many as there are classes.",
    },
    {
        .path = "layers.linear.bias",
        .type = TDM_JOB_KEY_BOOL,
        .offset = offsetof(tdm_job_layer, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether each of them gets a number added.",
    },
};

static const tdm_job_key conv_keys[] = {
    {
        .path = "layers.conv.channels",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, size),
        .required = true,
        .min = 1,
        .max = 65536,
        .word = "classes",
        .also_called = "filters out_channels features size",
        .help = "How many channels come out; classes means as many as there are classes.",
    },
    {
        .path = "layers.conv.kernel",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, kernel),
        .fallback = "3",
        .min = 1,
        .max = 1024,
        .also_called = "kernel_size window",
        .help = "How high and wide a window is.",
    },
    {
        .path = "layers.conv.stride",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, stride),
        .fallback = "1",
        .min = 1,
        .max = 1024,
        .also_called = "strides",
        .help = "How far the window moves from one place to the next.",
    },
    {
        .path = "layers.conv.padding",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, padding),
        .fallback = "same",
        .min = 0,
        .max = 1024,
        .word = "same",
        .word_value = TDM_JOB_PADDING_SAME,
        .also_called = "pad",
        .help =
            "How many zeros are put around. same puts as many that a stride of 1 keeps the size; it wants an odd kernel.",
    },
    {
        .path = "layers.conv.dilation",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, dilation),
        .fallback = "1",
        .min = 1,
        .max = 1024,
        .help = "How far apart the places are that a window looks at.",
    },
    {
        .path = "layers.conv.groups",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, groups),
        .fallback = "1",
        .min = 1,
        .max = 65536,
        .help =
            "Into how many groups the channels are divided, each of which sees only itself. As many as channels come in makes a depthwise convolution.",
    },
    {
        .path = "layers.conv.bias",
        .type = TDM_JOB_KEY_BOOL,
        .offset = offsetof(tdm_job_layer, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether each channel gets a number added. Not needed before a batch norm.",
    },
};

static const tdm_job_key conv1d_keys[] = {
    {
        .path = "layers.conv1d.channels",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, size),
        .required = true,
        .min = 1,
        .max = 65536,
        .word = "classes",
        .also_called = "filters out_channels features size",
        .help = "How many channels come out; classes means as many as there are classes.",
    },
    {
        .path = "layers.conv1d.kernel",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, kernel),
        .fallback = "3",
        .min = 1,
        .max = 1024,
        .also_called = "kernel_size window",
        .help = "How long a window is.",
    },
    {
        .path = "layers.conv1d.stride",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, stride),
        .fallback = "1",
        .min = 1,
        .max = 1024,
        .also_called = "strides",
        .help = "How far the window moves from one place to the next.",
    },
    {
        .path = "layers.conv1d.padding",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, padding),
        .fallback = "same",
        .min = 0,
        .max = 1024,
        .word = "same",
        .word_value = TDM_JOB_PADDING_SAME,
        .also_called = "pad",
        .help =
            "How many zeros are put around. same puts as many that a stride of 1 keeps the size; it wants an odd kernel.",
    },
    {
        .path = "layers.conv1d.dilation",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, dilation),
        .fallback = "1",
        .min = 1,
        .max = 1024,
        .help = "How far apart the places are that a window looks at.",
    },
    {
        .path = "layers.conv1d.groups",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, groups),
        .fallback = "1",
        .min = 1,
        .max = 65536,
        .help =
            "Into how many groups the channels are divided, each of which sees only itself. As many as channels come in makes a depthwise convolution.",
    },
    {
        .path = "layers.conv1d.bias",
        .type = TDM_JOB_KEY_BOOL,
        .offset = offsetof(tdm_job_layer, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether each channel gets a number added. Not needed before a batch norm.",
    },
};

static const tdm_job_key max_pool_keys[] = {
    {
        .path = "layers.max_pool.kernel",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, kernel),
        .required = true,
        .min = 1,
        .max = 1024,
        .also_called = "kernel_size size pool_size window",
        .help = "How high and wide a window is.",
    },
    {
        .path = "layers.max_pool.stride",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, stride),
        .fallback_note = "the kernel",
        .min = 1,
        .max = 1024,
        .also_called = "strides",
        .help = "How far the window moves from one place to the next.",
    },
    {
        .path = "layers.max_pool.padding",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, padding),
        .fallback = "0",
        .min = 0,
        .max = 512,
        .also_called = "pad",
        .help =
            "How far windows reach over the edge, at most half a kernel. What lies there does not count.",
    },
};

static const tdm_job_key average_pool_keys[] = {
    {
        .path = "layers.average_pool.kernel",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, kernel),
        .required = true,
        .min = 1,
        .max = 1024,
        .also_called = "kernel_size size pool_size window",
        .help = "How high and wide a window is.",
    },
    {
        .path = "layers.average_pool.stride",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, stride),
        .fallback_note = "the kernel",
        .min = 1,
        .max = 1024,
        .also_called = "strides",
        .help = "How far the window moves from one place to the next.",
    },
    {
        .path = "layers.average_pool.padding",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, padding),
        .fallback = "0",
        .min = 0,
        .max = 512,
        .also_called = "pad",
        .help =
            "How far windows reach over the edge, at most half a kernel. What lies there does not count.",
    },
};

static const tdm_job_key batch_norm_keys[] = {
    {
        .path = "layers.batch_norm.momentum",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, momentum),
        .fallback = "0.1",
        .min = 0,
        .max = 1,
        .min_open = true,
        .help = "The share of each step in the running statistics, which evaluation uses.",
    },
    {
        .path = "layers.batch_norm.eps",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, eps),
        .fallback = "1e-05",
        .min = 0,
        .max = INFINITY,
        .min_open = true,
        .also_called = "epsilon",
        .help = "What is added to the variance, so that nothing is divided by zero.",
    },
};

static const tdm_job_key layer_norm_keys[] = {
    {
        .path = "layers.layer_norm.eps",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, eps),
        .fallback = "1e-05",
        .min = 0,
        .max = INFINITY,
        .min_open = true,
        .also_called = "epsilon",
        .help = "What is added to the variance, so that nothing is divided by zero.",
    },
};

static const tdm_job_key rms_norm_keys[] = {
    {
        .path = "layers.rms_norm.eps",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, eps),
        .fallback = "1e-05",
        .min = 0,
        .max = INFINITY,
        .min_open = true,
        .also_called = "epsilon",
        .help = "What is added to the mean square, so that nothing is divided by zero.",
    },
};

static const tdm_job_key dropout_keys[] = {
    {
        .path = "layers.dropout.rate",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, rate),
        .required = true,
        .min = 0,
        .max = 1,
        .max_open = true,
        .also_called = "p prob probability",
        .help = "The share of numbers set to zero.",
    },
};

static const tdm_job_key embedding_keys[] = {
    {
        .path = "layers.embedding.width",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, size),
        .required = true,
        .min = 1,
        .max = 65536,
        .also_called = "dim features size channels embedding_dim n_embd",
        .help = "How many numbers stand for a token.",
    },
    {
        .path = "layers.embedding.tied",
        .type = TDM_JOB_KEY_BOOL,
        .offset = offsetof(tdm_job_layer, tied),
        .fallback = "false",
        .also_called = "tie tie_weights",
        .help = "Whether the table of embeddings also makes the logits, in place of a last layer.",
    },
};

static const tdm_job_key attention_keys[] = {
    {
        .path = "layers.attention.heads",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, heads),
        .required = true,
        .min = 1,
        .max = 1024,
        .also_called = "n_head num_heads n_heads",
        .help = "Into how many parts it is divided. The channels must be a multiple.",
    },
    {
        .path = "layers.attention.causal",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = offsetof(tdm_job_layer, causal),
        .fallback = "auto",
        .choices = "auto | yes | no",
        .help =
            "Whether a place sees only those before it. auto says yes for tokens and no for all else.",
    },
    {
        .path = "layers.attention.dropout",
        .type = TDM_JOB_KEY_REAL,
        .offset = offsetof(tdm_job_layer, rate),
        .fallback = "0",
        .min = 0,
        .max = 1,
        .max_open = true,
        .help = "The share of its weights set to zero while training.",
    },
};

static const tdm_job_key residual_keys[] = {
    {
        .path = "layers.residual.layers",
        .type = TDM_JOB_KEY_LAYERS,
        .offset = offsetof(tdm_job_layer, layers),
        .required = true,
        .max_count = TDM__LAYERS_LISTED,
        .also_called = "branch block body",
        .help = "The layers of the branch.",
    },
    {
        .path = "layers.residual.shortcut",
        .type = TDM_JOB_KEY_CHOICE,
        .offset = offsetof(tdm_job_layer, shortcut),
        .fallback = "auto",
        .choices = "auto | identity | projection",
        .also_called = "skip downsample",
        .help =
            "What the result of the branch is added to. identity is what went in, projection a linear map of it (with a batch norm behind, if the branch has one); auto is the identity where the shapes agree and a projection where they do not.",
    },
};

static const tdm_job_key repeat_keys[] = {
    {
        .path = "layers.repeat.times",
        .type = TDM_JOB_KEY_INT,
        .offset = offsetof(tdm_job_layer, times),
        .required = true,
        .min = 1,
        .max = 256,
        .also_called = "count n",
        .help = "How often.",
    },
    {
        .path = "layers.repeat.layers",
        .type = TDM_JOB_KEY_LAYERS,
        .offset = offsetof(tdm_job_layer, layers),
        .required = true,
        .max_count = TDM__LAYERS_LISTED,
        .also_called = "block body",
        .help = "The layers that are repeated, each time with parameters of their own.",
    },
};

#define LAYER(name) .path = "layers." name, .type = TDM_JOB_KEY_MAP, .form = TDM_JOB_FORM_LAYER
#define SETTINGS(keys)                                                                             \
    .fields = (keys), .field_count = COUNT(keys), .struct_bytes = sizeof(tdm_job_layer)

const tdm_job_key tdm__layer_keys[TDM_JOB_LAYER_KIND_COUNT] = {
    [TDM_JOB_LAYER_LINEAR] =
        {
            LAYER("linear"),
            SETTINGS(linear_keys),
            .also_called = "dense fc fully_connected",
            .help = "A fully connected layer over the last dimension: y = W x + b.",
        },
    [TDM_JOB_LAYER_CONV] =
        {
            LAYER("conv"),
            SETTINGS(conv_keys),
            .also_called = "conv2d convolution",
            .help = "A convolution of images.",
        },
    [TDM_JOB_LAYER_CONV1D] =
        {
            LAYER("conv1d"),
            SETTINGS(conv1d_keys),
            .also_called = "convolution1d",
            .help = "A convolution of sequences, along their length.",
        },
    [TDM_JOB_LAYER_MAX_POOL] =
        {
            LAYER("max_pool"),
            SETTINGS(max_pool_keys),
            .also_called = "maxpool maxpool2d max_pooling pool",
            .help = "The largest number of each window, of images or sequences.",
        },
    [TDM_JOB_LAYER_AVERAGE_POOL] =
        {
            LAYER("average_pool"),
            SETTINGS(average_pool_keys),
            .also_called = "avgpool avg_pool mean_pool averagepool",
            .help = "The mean of each window, of images or sequences.",
        },
    [TDM_JOB_LAYER_GLOBAL_POOL] =
        {
            LAYER("global_pool"),
            .also_called = "global_average_pool gap globalpool adaptive_pool",
            .help = "The mean of each channel over the whole image or sequence.",
        },
    [TDM_JOB_LAYER_BATCH_NORM] =
        {
            LAYER("batch_norm"),
            SETTINGS(batch_norm_keys),
            .also_called = "batchnorm bn batchnorm2d batch_norm2d",
            .help =
                "Batch norm: each channel gets mean 0 and variance 1 over the rows of a lane (of the batch, with parallel.sync_batchnorm), then a gain and a shift that are learned.",
        },
    [TDM_JOB_LAYER_LAYER_NORM] =
        {
            LAYER("layer_norm"),
            SETTINGS(layer_norm_keys),
            .also_called = "layernorm ln",
            .help = "Layer norm: the same over the last dimension of each place by itself.",
        },
    [TDM_JOB_LAYER_RMS_NORM] =
        {
            LAYER("rms_norm"),
            SETTINGS(rms_norm_keys),
            .also_called = "rmsnorm",
            .help =
                "RMS norm: the last dimension is divided by its root mean square, then gets a gain that is learned.",
        },
    [TDM_JOB_LAYER_RELU] =
        {
            LAYER("relu"),
            .also_called = "rectify",
            .help = "max(x, 0).",
        },
    [TDM_JOB_LAYER_GELU] =
        {
            LAYER("gelu"),
            .help = "The Gaussian error linear unit, by erf.",
        },
    [TDM_JOB_LAYER_GELU_TANH] =
        {
            LAYER("gelu_tanh"),
            .also_called = "gelu_new",
            .help = "The same by the tanh formula of GPT-2.",
        },
    [TDM_JOB_LAYER_SILU] =
        {
            LAYER("silu"),
            .also_called = "swish",
            .help = "x sigmoid(x).",
        },
    [TDM_JOB_LAYER_TANH] =
        {
            LAYER("tanh"),
            .help = "The hyperbolic tangent.",
        },
    [TDM_JOB_LAYER_SIGMOID] =
        {
            LAYER("sigmoid"),
            .also_called = "logistic",
            .help = "1 / (1 + exp(-x)).",
        },
    [TDM_JOB_LAYER_DROPOUT] =
        {
            LAYER("dropout"),
            SETTINGS(dropout_keys),
            .also_called = "drop",
            .help = "Sets numbers to zero at random while training, and scales the others up.",
        },
    [TDM_JOB_LAYER_FLATTEN] =
        {
            LAYER("flatten"),
            .also_called = "reshape view",
            .help = "A sample becomes one row of numbers.",
        },
    [TDM_JOB_LAYER_SEQUENCE] =
        {
            LAYER("sequence"),
            .also_called = "patches",
            .help = "An image becomes the sequence of its places, row by row.",
        },
    [TDM_JOB_LAYER_EMBEDDING] =
        {
            LAYER("embedding"),
            SETTINGS(embedding_keys),
            .also_called = "embed token_embedding wte",
            .help =
                "Tokens become rows of a table that is learned. It can only be the first layer of all, and makes the model one of tokens.",
        },
    [TDM_JOB_LAYER_POSITIONS] =
        {
            LAYER("positions"),
            .also_called = "position_embedding positional_embedding wpe",
            .help = "Adds numbers that are learned for each place.",
        },
    [TDM_JOB_LAYER_ATTENTION] =
        {
            LAYER("attention"),
            SETTINGS(attention_keys),
            .also_called = "self_attention multi_head_attention mha",
            .help =
                "Self-attention of sequences: queries, keys and values, many heads, and a linear layer behind.",
        },
    [TDM_JOB_LAYER_RESIDUAL] =
        {
            LAYER("residual"),
            SETTINGS(residual_keys),
            .also_called = "res skip shortcut resblock",
            .help = "A residual branch: what goes in is added to what its layers make of it.",
        },
    [TDM_JOB_LAYER_REPEAT] =
        {
            LAYER("repeat"),
            SETTINGS(repeat_keys),
            .also_called = "times loop stack",
            .help = "The same layers several times, one after the other.",
        },
};
