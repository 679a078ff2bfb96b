/*
 * keys_layers.c: the kinds of layers that a job's list may name, and the settings of each.
 *
 * A kind is a row like that of any mapping: its settings are rows as well, stored in a
 * tdm_job_layer. Parsing, defaults, suggestions, output and the reference page are generated from
 * these rows; what a layer computes is defined in src/nn. To add a kind, add it to
 * tdm_job_layer_kind, to this file and to src/nn. A kind whose first setting is required may be
 * given with that value alone: 'linear: 64'.
 */
#include <math.h>

#include "job/keys.h"

#define LAYER_KEY(name, kind, member) KEY_IN(tdm_job_layer, "layers." name, kind, member)

static const tdm_job_key linear_keys[] = {
    {
        LAYER_KEY("linear.features", INT, size),
        .required = true,
        RANGE(1, 1048576),
        .word = "classes",
        .also_called = "units out_features size width",
        .help = "The number of outputs; classes is the number of classes.",
    },
    {
        LAYER_KEY("linear.bias", BOOL, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether to add a learned bias to each output.",
    },
};

static const tdm_job_key conv_keys[] = {
    {
        LAYER_KEY("conv.channels", INT, size),
        .required = true,
        RANGE(1, 65536),
        .word = "classes",
        .also_called = "filters out_channels features size",
        .help = "The number of output channels; classes is the number of classes.",
    },
    {
        LAYER_KEY("conv.kernel", INT, kernel),
        .fallback = "3",
        RANGE(1, 1024),
        .also_called = "kernel_size window",
        .help = "The height and width of the kernel.",
    },
    {
        LAYER_KEY("conv.stride", INT, stride),
        .fallback = "1",
        RANGE(1, 1024),
        .also_called = "strides",
        .help = "The distance between consecutive positions of the kernel.",
    },
    {
        LAYER_KEY("conv.padding", INT, padding),
        .fallback = "same",
        RANGE(0, 1024),
        .word = "same",
        .word_value = TDM_JOB_PADDING_SAME,
        .also_called = "pad",
        .help = "The number of zeros added at each edge. same pads so that a stride of 1 keeps "
                "the size; it requires an odd kernel.",
    },
    {
        LAYER_KEY("conv.dilation", INT, dilation),
        .fallback = "1",
        RANGE(1, 1024),
        .help = "The distance between the inputs that the kernel reads.",
    },
    {
        LAYER_KEY("conv.groups", INT, groups),
        .fallback = "1",
        RANGE(1, 65536),
        .help = "The number of groups of channels; each group is convolved separately. As many "
                "groups as input channels give a depthwise convolution.",
    },
    {
        LAYER_KEY("conv.bias", BOOL, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether to add a learned bias to each channel. It is not needed before a batch "
                "norm.",
    },
};

static const tdm_job_key conv1d_keys[] = {
    {
        LAYER_KEY("conv1d.channels", INT, size),
        .required = true,
        RANGE(1, 65536),
        .word = "classes",
        .also_called = "filters out_channels features size",
        .help = "The number of output channels; classes is the number of classes.",
    },
    {
        LAYER_KEY("conv1d.kernel", INT, kernel),
        .fallback = "3",
        RANGE(1, 1024),
        .also_called = "kernel_size window",
        .help = "The length of the kernel.",
    },
    {
        LAYER_KEY("conv1d.stride", INT, stride),
        .fallback = "1",
        RANGE(1, 1024),
        .also_called = "strides",
        .help = "The distance between consecutive positions of the kernel.",
    },
    {
        LAYER_KEY("conv1d.padding", INT, padding),
        .fallback = "same",
        RANGE(0, 1024),
        .word = "same",
        .word_value = TDM_JOB_PADDING_SAME,
        .also_called = "pad",
        .help = "The number of zeros added at each edge. same pads so that a stride of 1 keeps "
                "the size; it requires an odd kernel.",
    },
    {
        LAYER_KEY("conv1d.dilation", INT, dilation),
        .fallback = "1",
        RANGE(1, 1024),
        .help = "The distance between the inputs that the kernel reads.",
    },
    {
        LAYER_KEY("conv1d.groups", INT, groups),
        .fallback = "1",
        RANGE(1, 65536),
        .help = "The number of groups of channels; each group is convolved separately. As many "
                "groups as input channels give a depthwise convolution.",
    },
    {
        LAYER_KEY("conv1d.bias", BOOL, bias),
        .fallback = "true",
        .also_called = "use_bias",
        .help = "Whether to add a learned bias to each channel. It is not needed before a batch "
                "norm.",
    },
};

static const tdm_job_key max_pool_keys[] = {
    {
        LAYER_KEY("max_pool.kernel", INT, kernel),
        .required = true,
        RANGE(1, 1024),
        .also_called = "kernel_size size pool_size window",
        .help = "The height and width of the window.",
    },
    {
        LAYER_KEY("max_pool.stride", INT, stride),
        .fallback_note = "the kernel size",
        RANGE(1, 1024),
        .also_called = "strides",
        .help = "The distance between consecutive positions of the window.",
    },
    {
        LAYER_KEY("max_pool.padding", INT, padding),
        .fallback = "0",
        RANGE(0, 512),
        .also_called = "pad",
        .help = "How far windows extend over the edge, at most half a kernel. Positions outside "
                "are ignored.",
    },
};

static const tdm_job_key average_pool_keys[] = {
    {
        LAYER_KEY("average_pool.kernel", INT, kernel),
        .required = true,
        RANGE(1, 1024),
        .also_called = "kernel_size size pool_size window",
        .help = "The height and width of the window.",
    },
    {
        LAYER_KEY("average_pool.stride", INT, stride),
        .fallback_note = "the kernel size",
        RANGE(1, 1024),
        .also_called = "strides",
        .help = "The distance between consecutive positions of the window.",
    },
    {
        LAYER_KEY("average_pool.padding", INT, padding),
        .fallback = "0",
        RANGE(0, 512),
        .also_called = "pad",
        .help = "How far windows extend over the edge, at most half a kernel. Positions outside "
                "are ignored.",
    },
};

static const tdm_job_key batch_norm_keys[] = {
    {
        LAYER_KEY("batch_norm.momentum", REAL, momentum),
        .fallback = "0.1",
        RANGE(0, 1),
        .min_open = true,
        .help = "The weight of each step in the running statistics, which evaluation uses.",
    },
    {
        LAYER_KEY("batch_norm.eps", REAL, eps),
        .fallback = "1e-05",
        RANGE(0, INFINITY),
        .min_open = true,
        .also_called = "epsilon",
        .help = "The number that is added to the variance to avoid a division by zero.",
    },
};

static const tdm_job_key layer_norm_keys[] = {
    {
        LAYER_KEY("layer_norm.eps", REAL, eps),
        .fallback = "1e-05",
        RANGE(0, INFINITY),
        .min_open = true,
        .also_called = "epsilon",
        .help = "The number that is added to the variance to avoid a division by zero.",
    },
};

static const tdm_job_key rms_norm_keys[] = {
    {
        LAYER_KEY("rms_norm.eps", REAL, eps),
        .fallback = "1e-05",
        RANGE(0, INFINITY),
        .min_open = true,
        .also_called = "epsilon",
        .help = "The number that is added to the mean square to avoid a division by zero.",
    },
};

static const tdm_job_key dropout_keys[] = {
    {
        LAYER_KEY("dropout.rate", REAL, rate),
        .required = true,
        RANGE(0, 1),
        .max_open = true,
        .also_called = "p prob probability",
        .help = "The fraction of numbers that are set to zero.",
    },
};

static const tdm_job_key embedding_keys[] = {
    {
        LAYER_KEY("embedding.width", INT, size),
        .required = true,
        RANGE(1, 65536),
        .also_called = "dim features size channels embedding_dim n_embd",
        .help = "The number of channels of each token.",
    },
    {
        LAYER_KEY("embedding.tied", BOOL, tied),
        .fallback = "false",
        .also_called = "tie tie_weights",
        .help = "Whether the embedding table also computes the logits, instead of a last layer.",
    },
};

static const tdm_job_key attention_keys[] = {
    {
        LAYER_KEY("attention.heads", INT, heads),
        .required = true,
        RANGE(1, 1024),
        .also_called = "n_head num_heads n_heads",
        .help = "The number of heads. The number of channels must be a multiple of it.",
    },
    {
        LAYER_KEY("attention.causal", CHOICE, causal),
        .fallback = "auto",
        .choices = "auto | yes | no",
        .help = "Whether a position attends only to itself and earlier positions. auto is yes "
                "for tokens and no for everything else.",
    },
    {
        LAYER_KEY("attention.dropout", REAL, rate),
        .fallback = "0",
        RANGE(0, 1),
        .max_open = true,
        .help = "The fraction of attention weights that are set to zero during training.",
    },
};

static const tdm_job_key residual_keys[] = {
    {
        LAYER_KEY("residual.layers", LAYERS, layers),
        .required = true,
        .max_count = TDM__LAYERS_LISTED,
        .also_called = "branch block body",
        .help = "The layers of the branch.",
    },
    {
        LAYER_KEY("residual.shortcut", CHOICE, shortcut),
        .fallback = "auto",
        .choices = "auto | identity | projection",
        .also_called = "skip downsample",
        .help = "What is added to the result of the branch. identity is the input of the branch; "
                "projection is a linear map of it (followed by a batch norm if the branch has "
                "one). auto is identity if the shapes agree, and projection otherwise.",
    },
};

static const tdm_job_key repeat_keys[] = {
    {
        LAYER_KEY("repeat.times", INT, times),
        .required = true,
        RANGE(1, 256),
        .also_called = "count n",
        .help = "The number of repetitions.",
    },
    {
        LAYER_KEY("repeat.layers", LAYERS, layers),
        .required = true,
        .max_count = TDM__LAYERS_LISTED,
        .also_called = "block body",
        .help = "The layers to repeat. Each repetition has its own parameters.",
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
            .help = "A two-dimensional convolution of images.",
        },
    [TDM_JOB_LAYER_CONV1D] =
        {
            LAYER("conv1d"),
            SETTINGS(conv1d_keys),
            .also_called = "convolution1d",
            .help = "A one-dimensional convolution of sequences.",
        },
    [TDM_JOB_LAYER_MAX_POOL] =
        {
            LAYER("max_pool"),
            SETTINGS(max_pool_keys),
            .also_called = "maxpool maxpool2d max_pooling pool",
            .help = "The maximum of each window, for images or sequences.",
        },
    [TDM_JOB_LAYER_AVERAGE_POOL] =
        {
            LAYER("average_pool"),
            SETTINGS(average_pool_keys),
            .also_called = "avgpool avg_pool mean_pool averagepool",
            .help = "The mean of each window, for images or sequences.",
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
            .help = "Batch norm: normalises each channel to mean 0 and variance 1 over the rows "
                    "of a lane (over the whole batch with parallel.sync_batchnorm), then applies "
                    "a learned gain and shift.",
        },
    [TDM_JOB_LAYER_LAYER_NORM] =
        {
            LAYER("layer_norm"),
            SETTINGS(layer_norm_keys),
            .also_called = "layernorm ln",
            .help = "Layer norm: normalises the last dimension to mean 0 and variance 1 at each "
                    "position, then applies a learned gain and shift.",
        },
    [TDM_JOB_LAYER_RMS_NORM] =
        {
            LAYER("rms_norm"),
            SETTINGS(rms_norm_keys),
            .also_called = "rmsnorm",
            .help = "RMS norm: divides the last dimension by its root mean square, then applies "
                    "a learned gain.",
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
            .help = "The Gaussian error linear unit, computed with erf.",
        },
    [TDM_JOB_LAYER_GELU_TANH] =
        {
            LAYER("gelu_tanh"),
            .also_called = "gelu_new",
            .help = "The Gaussian error linear unit, with the tanh approximation of GPT-2.",
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
            .help = "Sets random numbers to zero during training and scales up the others.",
        },
    [TDM_JOB_LAYER_FLATTEN] =
        {
            LAYER("flatten"),
            .also_called = "reshape view",
            .help = "Flattens a sample into one row of numbers.",
        },
    [TDM_JOB_LAYER_SEQUENCE] =
        {
            LAYER("sequence"),
            .also_called = "patches",
            .help = "Turns an image into the sequence of its positions, row by row.",
        },
    [TDM_JOB_LAYER_EMBEDDING] =
        {
            LAYER("embedding"),
            SETTINGS(embedding_keys),
            .also_called = "embed token_embedding wte",
            .help = "Replaces each token by a row of a learned table. It must be the first "
                    "layer, and makes the model a token model.",
        },
    [TDM_JOB_LAYER_POSITIONS] =
        {
            LAYER("positions"),
            .also_called = "position_embedding positional_embedding wpe",
            .help = "Adds a learned vector to each position.",
        },
    [TDM_JOB_LAYER_ATTENTION] =
        {
            LAYER("attention"),
            SETTINGS(attention_keys),
            .also_called = "self_attention multi_head_attention mha",
            .help = "Multi-head self-attention of sequences, followed by a linear layer.",
        },
    [TDM_JOB_LAYER_RESIDUAL] =
        {
            LAYER("residual"),
            SETTINGS(residual_keys),
            .also_called = "res skip shortcut resblock",
            .help = "A residual branch: adds the input to the output of its layers.",
        },
    [TDM_JOB_LAYER_REPEAT] =
        {
            LAYER("repeat"),
            SETTINGS(repeat_keys),
            .also_called = "times loop stack",
            .help = "The same layers several times in sequence.",
        },
};
