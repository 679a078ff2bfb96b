/*
 * data_csv_cases.c: the tests of CSV and of the numbers in it; a part of data_test.c. Each malformed file has
 * exactly one mistake, with a part of the expected message.
 */

#include "base/base.h"
#include "unit/data_cases.h"
#include "unit/data_helpers.h"

/* ---- CSV: good files ------------------------------------------------------------------------- */

static void csv_plain(void)
{
    tdm_dataset *d = parse_text("1,2,b\n3,-4.5,a\n.5,1e2,b\n", NULL);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->sample_count, 3);
    CHECK_INT(info->feature_count, 2);
    CHECK_INT(info->sample_shape.rank, 1);
    CHECK_INT(info->sample_shape.dim[0], 2);
    CHECK_INT(info->class_count, 2);
    CHECK_TEXT(info->class_names[0], "a");
    CHECK_TEXT(info->class_names[1], "b");
    CHECK(info->feature_names == NULL);
    CHECK_INT(info->storage, TDM_DTYPE_F32);
    CHECK_TEXT(info->path, "t.csv");
    CHECK(feature(d, 1, 1) == -4.5f);
    CHECK(feature(d, 2, 0) == 0.5f);
    CHECK(feature(d, 2, 1) == 100.0f);
    CHECK_INT(class_of(d, 0), 1);
    CHECK_INT(class_of(d, 1), 0);
    tdm_dataset_destroy(d);
}

static void csv_quotes_line_ends_and_blanks(void)
{
    /* A mark, CRLF, blank lines, quoted delimiter, quote and line break, spaces, no last LF. */
    tdm_dataset *d = parse_text("\xef\xbb\xbf\"a,b\",\"say \"\"x\"\"\",class\r\n"
                                "\r\n"
                                " 1 ,\"2\" , \"two\nlines\"\r\n"
                                "   \n"
                                "3, 4 ,\" keep \"",
                                NULL);
    const tdm_dataset_info *info = tdm_dataset_info_of(d);
    CHECK_INT(info->sample_count, 2);
    CHECK_TEXT(info->feature_names[0], "a,b");
    CHECK_TEXT(info->feature_names[1], "say \"x\"");
    CHECK_TEXT(info->class_names[0], " keep ");
    CHECK_TEXT(info->class_names[1], "two\nlines");
    CHECK(feature(d, 0, 0) == 1.0f && feature(d, 0, 1) == 2.0f && feature(d, 1, 1) == 4.0f);
    tdm_dataset_destroy(d);
}

static void csv_label_choices(void)
{
    const char *text = "x,kind,y\n1,u,2\n3,v,4\n";
    static const char *const labels[] = {"kind", "2"};
    for (size_t i = 0; i < 2; i++) {
        tdm_dataset *d = parse_text(text, &(tdm_data_options){.label = labels[i]});
        const tdm_dataset_info *info = tdm_dataset_info_of(d);
        CHECK_TEXT(info->feature_names[1], "y");
        CHECK_TEXT(info->class_names[1], "v");
        CHECK(feature(d, 1, 1) == 4.0f);
        tdm_dataset_destroy(d);
    }
    tdm_dataset *d = parse_text("7;1;2\n8;3;4\n",
                                &(tdm_data_options){.label = "first", .delimiter = ';'});
    CHECK_INT(tdm_dataset_info_of(d)->feature_count, 2);
    CHECK_TEXT(tdm_dataset_info_of(d)->class_names[1], "8");
    tdm_dataset_destroy(d);

    d = parse_text("1\n2\n", &(tdm_data_options){.label = "none"});
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 0);
    CHECK_INT(tdm_dataset_info_of(d)->feature_count, 1);
    CHECK_INT(class_of(d, 1), -1);
    tdm_dataset_destroy(d);

    d = parse_text("3\t4\tx\n", &(tdm_data_options){.delimiter = '\t'});
    CHECK(feature(d, 0, 1) == 4.0f);
    tdm_dataset_destroy(d);
}

static void csv_known_feature_count(void)
{
    tdm_data_options two = {.feature_count = 2, .label = "kind"};
    tdm_dataset *d = parse_text("x,y\n1,2\n3,4\n", &two); /* no column for the label */
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 0);
    CHECK_INT(tdm_dataset_info_of(d)->feature_count, 2);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 2);
    CHECK(feature(d, 1, 1) == 4.0f);
    tdm_dataset_destroy(d);
    d = parse_text("x,kind,y\n1,u,2\n3,v,4\n", &two);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 2);
    CHECK_INT(tdm_dataset_info_of(d)->feature_count, 2);
    tdm_dataset_destroy(d);
    refuse_text("1,2,3,4\n", &two, TDM_ERR_FORMAT, "line 1 has 4 columns");
    refuse_text("1;2;a\n", &two, TDM_ERR_FORMAT, "set the delimiter");
    refuse_text("x,y,sort\n1,2,u\n", &two, TDM_ERR_INVALID, "no column is named 'kind'");
}

static void csv_header_detection(void)
{
    tdm_dataset *d = parse_text("a,b,c\n1,2,x\n", NULL);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 1);
    tdm_dataset_destroy(d);
    /* The label need not be a number, so a text in that column alone does not make a header. */
    d = parse_text("1,2,c\n1,2,x\n", NULL);
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 2);
    tdm_dataset_destroy(d);
    d = parse_text("1,2,c\n1,2,x\n", &(tdm_data_options){.header = TDM_DATA_HEADER_YES});
    CHECK_INT(tdm_dataset_info_of(d)->sample_count, 1);
    CHECK_TEXT(tdm_dataset_info_of(d)->feature_names[1], "2");
    tdm_dataset_destroy(d);
    refuse_text("a,b,c\n1,2,x\n", &(tdm_data_options){.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT,
                "line 1, column 1: 'a' is not a number");
    /* A missing value is not a column name: an error is better than a lost sample. */
    refuse_text("1,,c\n1,2,x\n", NULL, TDM_ERR_FORMAT, "line 1, column 2: '' is empty");
}

static void csv_classes(void)
{
    /* Numbers sort as numbers, whatever order they come in. */
    tdm_dataset *d = parse_text("0,10\n0,9\n0,-1\n0,2.5\n", NULL);
    const char *const *names = tdm_dataset_info_of(d)->class_names;
    CHECK_TEXT(names[0], "-1");
    CHECK_TEXT(names[1], "2.5");
    CHECK_TEXT(names[2], "9");
    CHECK_TEXT(names[3], "10");
    CHECK_INT(class_of(d, 0), 3);
    tdm_dataset_destroy(d);
    /* If one of them is not a number, they are sorted by bytes. */
    d = parse_text("0,10\n0,9\n0,x\n", NULL);
    CHECK_TEXT(tdm_dataset_info_of(d)->class_names[0], "10");
    CHECK_TEXT(tdm_dataset_info_of(d)->class_names[1], "9");
    tdm_dataset_destroy(d);

    const char *const given[] = {"setosa", "virginica", "absent"};
    tdm_data_options options = {.class_names = given, .class_count = 3};
    d = parse_text("0,virginica\n0,setosa\n", &options);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, 3);
    CHECK_INT(class_of(d, 0), 1);
    CHECK_INT(class_of(d, 1), 0);
    tdm_dataset_destroy(d);
    refuse_text(
        "0,virginica\n\n0,setoas\n", &options, TDM_ERR_FORMAT,
        "line 3, column 2: the label 'setoas' is not one of the 3 classes of the training set; "
        "did you mean 'setosa'?");
    const char *const twice[] = {"a", "a"};
    refuse_text("0,a\n", &(tdm_data_options){.class_names = twice, .class_count = 2},
                TDM_ERR_INVALID, "'a' is given twice");
    refuse_text("0,a\n", &(tdm_data_options){.class_names = twice}, TDM_ERR_INVALID,
                "class_count is 0");
}

static void csv_many_classes(void)
{
    tdm_str text = TDM_STR_INIT;
    for (int i = 0; i < TDM__MAX_CLASSES; i++) tdm_str_addf(&text, "%d,c%05d\n", i, 65535 - i);
    tdm_dataset *d = parse_text(tdm_str_text(&text), NULL);
    CHECK_INT(tdm_dataset_info_of(d)->class_count, TDM__MAX_CLASSES);
    CHECK_TEXT(tdm_dataset_info_of(d)->class_names[65535], "c65535");
    CHECK_INT(class_of(d, 0), 65535);
    CHECK_INT(class_of(d, 65535), 0);
    tdm_dataset_destroy(d);
    tdm_str_add(&text, "1,one-too-many\n");
    refuse_text(tdm_str_text(&text), NULL, TDM_ERR_RANGE,
                "line 65537, column 2: more than 65536 different labels");
    tdm_str_release(&text);
}

/* ---- CSV: bad files -------------------------------------------------------------------------- */

typedef struct bad_text {
    const char *text;
    tdm_data_options options;
    tdm_status status;
    const char *part;
} bad_text;

static const bad_text bad_csv[] = {
    {"", {0}, TDM_ERR_FORMAT, "t.csv: the file is empty"},
    {"\n \n\r\n", {0}, TDM_ERR_FORMAT, "only blank lines"},
    {"a,b\n", {0}, TDM_ERR_FORMAT, "nothing follows the header on line 1"},
    {"a,b\n\n\n", {0}, TDM_ERR_FORMAT, "nothing follows the header on line 1"},
    {"1\n2\n", {0}, TDM_ERR_FORMAT, "line 1 has only one column, the label"},
    {"1;2\n", {0}, TDM_ERR_FORMAT, "another character than ','"},
    {"1,2,a\n3,4\n", {0}, TDM_ERR_FORMAT, "t.csv: line 2 has 2 columns, but line 1 has 3"},
    {"1,2,a\n3,4,b,\n", {0}, TDM_ERR_FORMAT, "line 2 has 4 columns, but line 1 has 3"},
    {"\nw,h,c\n1,2,a\n3,tall,b\n",
     {0},
     TDM_ERR_FORMAT,
     "t.csv: line 4, column 2 ('h'): 'tall' is not a number"},
    {"1,0x10,a\n", {.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT, "'0x10' is not a number"},
    {"1,1 000,a\n", {.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT, "'1 000' is not a number"},
    {"1,1e,a\n", {.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT, "'1e' is not a number"},
    {"1,-,a\n", {.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT, "'-' is not a number"},
    {"1,.,a\n", {.header = TDM_DATA_HEADER_NO}, TDM_ERR_FORMAT, "'.' is not a number"},
    {"1,2,a\n3,NaN,b\n", {0}, TDM_ERR_FORMAT, "line 2, column 2: 'NaN' is not a finite number"},
    {"1,2,a\n3,-inf,b\n", {0}, TDM_ERR_FORMAT, "'-inf' is not a finite number"},
    {"1,2,a\n3,Infinity,b\n", {0}, TDM_ERR_FORMAT, "'Infinity' is not a finite number"},
    {"1,2,a\n3,1e39,b\n", {0}, TDM_ERR_FORMAT, "'1e39' is too large for a 32-bit float"},
    {"1,2,a\n3,1e99999999999999999999,b\n", {0}, TDM_ERR_FORMAT, "too large"},
    {"1,2,a\n3,,b\n", {0}, TDM_ERR_FORMAT, "line 2, column 2: '' is empty"},
    {"1,2,a\n3,4,\n", {0}, TDM_ERR_FORMAT, "line 2, column 3: the label is missing"},
    {"1,2,a\n3,4,\"\"\n", {0}, TDM_ERR_FORMAT, "line 2, column 3: the label is missing"},
    {"1,2,a\n3,\"4,b\n", {0}, TDM_ERR_FORMAT, "line 2, column 2: the quote that opens here"},
    {"1,2,a\n3,\"4\"4,b\n", {0}, TDM_ERR_FORMAT, "line 2, column 2: text follows the closing"},
    {"1,2,a\n3,4\"4,b\n", {0}, TDM_ERR_FORMAT, "line 2, column 2: a quote in the middle"},
    {"1,2,a\r3,4,b\r", {0}, TDM_ERR_FORMAT, "line 1, column 3: a carriage return without"},
    {"1,2,\xe9t\xe9\n",
     {0},
     TDM_ERR_FORMAT,
     "line 1, column 3: the label '?t?' is not valid UTF-8"},
    {"\xe9,b,c\n1,2,a\n", {0}, TDM_ERR_FORMAT, "line 1, column 1: the column name is not valid"},
    {"width,height,class\n1,2,a\n",
     {.label = "clas"},
     TDM_ERR_INVALID,
     "no column is named 'clas' on line 1, taken as the header; give the name, the number, first "
     "or last; did you mean 'class'?"},
    {"width,height,class\n1,2,a\n",
     {.label = "zzzzzzzz"},
     TDM_ERR_INVALID,
     "no column is named 'zzzzzzzz' on line 1, taken as the header; give the name, the number"},
    {"a,b,a\n1,2,a\n", {.label = "a"}, TDM_ERR_INVALID, "columns 1 and 3 are both named 'a'"},
    {"1,2,a\n",
     {.label = "b", .header = TDM_DATA_HEADER_NO},
     TDM_ERR_INVALID,
     "the label 'b' is a column name, but data.header says that the file has no header"},
    {"1,2,a\n", {.label = "4"}, TDM_ERR_INVALID, "column 4 for the label does not exist"},
    {"1,2,a\n", {.label = "0"}, TDM_ERR_INVALID, "column 0 for the label does not exist"},
    {"1,2,a\n",
     {.label = "18446744073709551617"},
     TDM_ERR_INVALID,
     "column 18446744073709551617 for the label"},
    {"1,2,a\n", {.delimiter = '"'}, TDM_ERR_INVALID, "byte 34 cannot separate columns"},
    {"1,2,a\n", {.delimiter = '1'}, TDM_ERR_INVALID, "byte 49 cannot separate columns"},
    {"1,2,a\n", {.format = 77}, TDM_ERR_INVALID, "unknown data format 77"},
    {"1,2,a\n", {.format = TDM_DATA_FORMAT_IDX}, TDM_ERR_FORMAT, "not an IDX file"},
    {"1,2,a\n3,4,b\n",
     {.limit_bytes = 11},
     TDM_ERR_RANGE,
     "12 bytes are more than the limit of 11"},
};

static void csv_refusals(void)
{
    for (size_t i = 0; i < sizeof(bad_csv) / sizeof(bad_csv[0]); i++)
        refuse_text(bad_csv[i].text, &bad_csv[i].options, bad_csv[i].status, bad_csv[i].part);
}

static void csv_nul_bytes(void)
{
    tdm_data_options csv = {.format = TDM_DATA_FORMAT_CSV};
    refuse("1,2\0,a\n", 7, NULL, 0, &csv, TDM_ERR_FORMAT, "line 1, column 2: a NUL byte");
    refuse("1,2,a\n\"\0\",1,a\n", 14, NULL, 0, &csv, TDM_ERR_FORMAT, "line 2, column 1: a NUL");
    refuse("1,\"2\"\0", 6, NULL, 0, &csv, TDM_ERR_FORMAT, "line 1, column 2: a NUL byte");
    refuse("1,2\0,a\n", 7, NULL, 0, NULL, TDM_ERR_FORMAT, "neither CSV");
    refuse("\xff\xfe"
           "1\0,\0a\0",
           8, NULL, 0, NULL, TDM_ERR_FORMAT, "UTF-16");
    refuse("1,2,a\n", 6, "0", 1, NULL, TDM_ERR_INVALID, "a separate file of labels");
}

static void csv_limits(void)
{
    size_t cell = (1u << 20) + 1;
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, "1,");
    for (size_t i = 0; i < cell; i++) tdm_str_add_char(&text, 'x');
    refuse_text(tdm_str_text(&text), NULL, TDM_ERR_RANGE, "column 2: the cell is longer than 1048");
    tdm_str_clear(&text);
    tdm_str_add(&text, "1,\"");
    for (size_t i = 0; i < cell; i++) tdm_str_add_char(&text, '\n');
    refuse_text(tdm_str_text(&text), NULL, TDM_ERR_RANGE, "is its closing quote missing?");
    tdm_str_clear(&text);
    for (size_t i = 0; i < cell; i++) tdm_str_add(&text, "1,");
    refuse_text(tdm_str_text(&text), NULL, TDM_ERR_RANGE, "line 1: more than 1048576 columns");
    tdm_str_clear(&text);
    tdm_str_add(&text, "0,a\n0.");
    for (size_t i = 0; i < 300; i++) tdm_str_add_char(&text, '1');
    tdm_str_add(&text, ",a\n");
    refuse_text(tdm_str_text(&text), NULL, TDM_ERR_FORMAT, "has too many digits");
    tdm_str_release(&text);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void numbers_read_exactly(void)
{
    static const char *const texts[] = {"0",
                                        "-0",
                                        "1",
                                        "+1",
                                        "0.1",
                                        "123456789.125",
                                        "1e22",
                                        "1e23",
                                        "1e-22",
                                        "1e-23",
                                        "3.4e38",
                                        "9007199254740993",
                                        "1E+5",
                                        "1.",
                                        ".5",
                                        "1e-400",
                                        "0e999999",
                                        "123456789012345678901234",
                                        "00000001",
                                        "0.000000001",
                                        "5e-324",
                                        "16777217",
                                        "1e00000000000000000001",
                                        "-7.25e-3",
                                        "2.5e-45",
                                        "0.30000000000000004441",
                                        "9007199254740992e3"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        double value = 99;
        CHECK_INT(tdm__number_parse(texts[i], strlen(texts[i]), &value), TDM__NUMBER_OK);
        CHECK(value == strtod(texts[i], NULL));
        CHECK(signbit(value) == signbit(strtod(texts[i], NULL)));
    }
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 5, .stream = TDM_RNG_STREAM_USER});
    for (int i = 0; i < 20000; i++) {
        char text[64];
        double number = (tdm_rng_uniform(&rng) - 0.5) * pow(10, (int)tdm_rng_below(&rng, 70) - 35);
        snprintf(text, sizeof(text), "%.*g", 1 + (int)tdm_rng_below(&rng, 20), number);
        double value = 99;
        CHECK_INT(tdm__number_parse(text, strlen(text), &value), TDM__NUMBER_OK);
        CHECK(value == strtod(text, NULL));
    }
    double kept = 7;
    CHECK_INT(tdm__number_parse("", 0, &kept), TDM__NUMBER_EMPTY);
    CHECK_INT(tdm__number_parse("1 ", 2, &kept), TDM__NUMBER_NOT_A_NUMBER);
    CHECK_INT(tdm__number_parse("3.5e38", 6, &kept), TDM__NUMBER_TOO_LARGE);
    CHECK(kept == 7);
}

static void texts_for_messages(void)
{
    char shown[TDM__SHOW_BYTES];
    CHECK_TEXT(tdm__text_show("a\tb\x7f\xff", 5, shown), "a?b??");
    CHECK_TEXT(tdm__text_show("gr\xc3\xbcn", 5, shown), "gr\xc3\xbcn");
    char long_text[200];
    memset(long_text, 'x', sizeof(long_text));
    CHECK_INT(strlen(tdm__text_show(long_text, sizeof(long_text), shown)), TDM__SHOW_BYTES - 1);
    CHECK_HAS(shown, "xxx...");
    CHECK(tdm__utf8_ok("\xf0\x9f\x98\x80", 4));
    CHECK(!tdm__utf8_ok("\xed\xa0\x80", 3)); /* a surrogate */
    CHECK(!tdm__utf8_ok("\xc0\x80", 2));     /* overlong */
    CHECK(!tdm__utf8_ok("\xe2\x82", 2));     /* cut off */
}

static const check_test data_csv_tests[] = {
    CHECK_TEST(csv_plain),
    CHECK_TEST(csv_quotes_line_ends_and_blanks),
    CHECK_TEST(csv_label_choices),
    CHECK_TEST(csv_known_feature_count),
    CHECK_TEST(csv_header_detection),
    CHECK_TEST(csv_classes),
    CHECK_TEST(csv_many_classes),
    CHECK_TEST(csv_refusals),
    CHECK_TEST(csv_nul_bytes),
    CHECK_TEST(csv_limits),
    CHECK_TEST(numbers_read_exactly),
    CHECK_TEST(texts_for_messages),
};
CHECK_SUITE(data_csv, data_csv_tests);
