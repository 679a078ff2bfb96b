/*
 * aead.c: AES-128-GCM by OpenSSL or IPSec MB. See the header.
 */
#include "net/aead.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct aead_ops {
    bool (*set_key)(tdm__aead *aead, const uint8_t *key);
    bool (*begin)(tdm__aead *aead, const uint8_t *nonce, const uint8_t *header, size_t bytes);
    bool (*update)(tdm__aead *aead, const uint8_t *in, uint8_t *out, size_t bytes);
    bool (*seal)(tdm__aead *aead, uint8_t *tag);
    bool (*open)(tdm__aead *aead, const uint8_t *tag);
} aead_ops;

/* ---- IPSec MB ---------------------------------------------------------------------------------------- */

#if defined TDM__WITH_IPSEC_MB
#include <dlfcn.h>
#include <intel-ipsec-mb.h>

#define IPSEC_LIBRARY "libIPSec_MB.so.1"

/* The library's functions for this CPU. NULL: not installed, or not faster than OpenSSL. */
static IMB_MGR *ipsec;
static pthread_once_t ipsec_once = PTHREAD_ONCE_INIT;
static char ipsec_name[48];

static void ipsec_load(void)
{
    void *library = dlopen(IPSEC_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return;
    IMB_MGR *(*allocate)(uint64_t) = NULL;
    void (*prepare)(IMB_MGR *, IMB_ARCH *) = NULL;
    const char *(*version)(void) = NULL;
    void *found[] = {dlsym(library, "alloc_mb_mgr"), dlsym(library, "init_mb_mgr_auto"),
                     dlsym(library, "imb_get_version_str")};
    if (!found[0] || !found[1] || !found[2]) return;
    memcpy(&allocate, &found[0], sizeof(allocate));
    memcpy(&prepare, &found[1], sizeof(prepare));
    memcpy(&version, &found[2], sizeof(version));

    IMB_MGR *manager = allocate(0);
    if (!manager) return;
    IMB_ARCH level = IMB_ARCH_NONE;
    const uint64_t needed = IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
    prepare(manager, &level);
    if (level != IMB_ARCH_AVX512 || (manager->features & needed) != needed) return;
    const char *number = version();
    snprintf(ipsec_name, sizeof(ipsec_name), "IPSec MB %.*s", (int)strspn(number, "v.0123456789"),
             number + (*number == 'v'));
    ipsec = manager; /* never freed */
}

static bool ipsec_is_usable(void)
{
    pthread_once(&ipsec_once, ipsec_load);
    return ipsec != NULL;
}
#endif

/* ---- objects ------------------------------------------------------------------------------------------ */

struct tdm__aead {
#if defined TDM__WITH_IPSEC_MB
    struct gcm_key_data ipsec_key; /* first: it must be aligned to 64 bytes */
    struct gcm_context_data ipsec_message;
#endif
    const aead_ops *ops;
    EVP_CIPHER_CTX *openssl;
    bool encrypts;
};

#if defined TDM__WITH_IPSEC_MB
static bool ipsec_set_key(tdm__aead *a, const uint8_t *key)
{
    IMB_AES128_GCM_PRE(ipsec, key, &a->ipsec_key);
    return true;
}

static bool ipsec_begin(tdm__aead *a, const uint8_t *nonce, const uint8_t *header, size_t bytes)
{
    IMB_AES128_GCM_INIT(ipsec, &a->ipsec_key, &a->ipsec_message, nonce, header, bytes);
    return true;
}

static bool ipsec_update(tdm__aead *a, const uint8_t *in, uint8_t *out, size_t bytes)
{
    if (a->encrypts)
        IMB_AES128_GCM_ENC_UPDATE(ipsec, &a->ipsec_key, &a->ipsec_message, out, in, bytes);
    else
        IMB_AES128_GCM_DEC_UPDATE(ipsec, &a->ipsec_key, &a->ipsec_message, out, in, bytes);
    return true;
}

static bool ipsec_seal(tdm__aead *a, uint8_t *tag)
{
    IMB_AES128_GCM_ENC_FINALIZE(ipsec, &a->ipsec_key, &a->ipsec_message, tag, TDM__AEAD_TAG);
    return true;
}

static bool ipsec_open(tdm__aead *a, const uint8_t *tag)
{
    uint8_t right[TDM__AEAD_TAG];
    IMB_AES128_GCM_DEC_FINALIZE(ipsec, &a->ipsec_key, &a->ipsec_message, right, TDM__AEAD_TAG);
    return CRYPTO_memcmp(right, tag, sizeof(right)) == 0;
}

static const aead_ops ipsec_ops = {.set_key = ipsec_set_key,
                                   .begin = ipsec_begin,
                                   .update = ipsec_update,
                                   .seal = ipsec_seal,
                                   .open = ipsec_open};
#endif

/* ---- OpenSSL ------------------------------------------------------------------------------------------ */

static bool openssl_set_key(tdm__aead *a, const uint8_t *key)
{
    return EVP_CipherInit_ex(a->openssl, EVP_aes_128_gcm(), NULL, key, NULL, a->encrypts) == 1;
}

static bool openssl_begin(tdm__aead *a, const uint8_t *nonce, const uint8_t *header, size_t bytes)
{
    int moved = 0;
    return EVP_CipherInit_ex(a->openssl, NULL, NULL, NULL, nonce, a->encrypts) == 1 &&
           EVP_CipherUpdate(a->openssl, NULL, &moved, header, (int)bytes) == 1;
}

static bool openssl_update(tdm__aead *a, const uint8_t *in, uint8_t *out, size_t bytes)
{
    int moved = 0;
    return EVP_CipherUpdate(a->openssl, out, &moved, in, (int)bytes) == 1;
}

static bool openssl_seal(tdm__aead *a, uint8_t *tag)
{
    int moved = 0;
    return EVP_CipherFinal_ex(a->openssl, tag, &moved) == 1 &&
           EVP_CIPHER_CTX_ctrl(a->openssl, EVP_CTRL_AEAD_GET_TAG, TDM__AEAD_TAG, tag) == 1;
}

static bool openssl_open(tdm__aead *a, const uint8_t *tag)
{
    int moved = 0;
    uint8_t none[TDM__AEAD_TAG], expected[TDM__AEAD_TAG];
    memcpy(expected, tag, sizeof(expected));
    return EVP_CIPHER_CTX_ctrl(a->openssl, EVP_CTRL_AEAD_SET_TAG, TDM__AEAD_TAG, expected) == 1 &&
           EVP_CipherFinal_ex(a->openssl, none, &moved) == 1;
}

static const aead_ops openssl_ops = {.set_key = openssl_set_key,
                                     .begin = openssl_begin,
                                     .update = openssl_update,
                                     .seal = openssl_seal,
                                     .open = openssl_open};

/* ---- interface ---------------------------------------------------------------------------------------- */

tdm__aead *tdm__aead_create(bool encrypts, bool only_openssl)
{
    enum { ALIGNMENT = 64 };
    size_t bytes = (sizeof(tdm__aead) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tdm__aead *a = aligned_alloc(ALIGNMENT, bytes);
    if (!a) return NULL;
    memset(a, 0, bytes);
    a->encrypts = encrypts;
    a->ops = &openssl_ops;
    (void)only_openssl;
#if defined TDM__WITH_IPSEC_MB
    if (!only_openssl && ipsec_is_usable()) a->ops = &ipsec_ops;
#endif
    if (a->ops == &openssl_ops) a->openssl = EVP_CIPHER_CTX_new();
    if (a->ops == &openssl_ops && !a->openssl) {
        free(a);
        return NULL;
    }
    return a;
}

void tdm__aead_destroy(tdm__aead *a)
{
    if (!a) return;
    EVP_CIPHER_CTX_free(a->openssl);
    OPENSSL_cleanse(a, sizeof(*a));
    free(a);
}

bool tdm__aead_set_key(tdm__aead *a, const uint8_t key[TDM__AEAD_KEY])
{
    return a->ops->set_key(a, key);
}

bool tdm__aead_begin(tdm__aead *a, const uint8_t nonce[TDM__AEAD_NONCE], const uint8_t *header,
                     size_t header_bytes)
{
    return a->ops->begin(a, nonce, header, header_bytes);
}

bool tdm__aead_update(tdm__aead *a, const uint8_t *in, uint8_t *out, size_t bytes)
{
    return bytes == 0 || a->ops->update(a, in, out, bytes);
}

bool tdm__aead_seal(tdm__aead *a, uint8_t tag[TDM__AEAD_TAG])
{
    return a->ops->seal(a, tag);
}

bool tdm__aead_open(tdm__aead *a, const uint8_t tag[TDM__AEAD_TAG])
{
    return a->ops->open(a, tag);
}

const char *tdm__aead_library(void)
{
#if defined TDM__WITH_IPSEC_MB
    if (ipsec_is_usable()) return ipsec_name;
#endif
    return "OpenSSL";
}
