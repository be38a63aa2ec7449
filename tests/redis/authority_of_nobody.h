// A certificate that a TLS file of Redis may hold, where nobody connects by it.
#pragma once

namespace terrace {

// Of an authority that nobody has the key of.
inline constexpr char kAuthorityOfNobody[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBcDCCARWgAwIBAgIUaMACgZZ0fDL8q9FSBToQSYl0CUIwCgYIKoZIzj0EAwIw\n"
    "DDEKMAgGA1UEAwwBdDAgFw0yNjExMjcxNzM2NThaGA8yMTI2MTEwMzE3MzY1OFow\n"
    "DDEKMAgGA1UEAwwBdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE8C5wJk+SZ7\n"
    "13SaTTet3voORISZGRcpN2+4C7B4ipU6KkAt3OYd+j1+knrDsF9YelpFv3DS9xoM\n"
    "Fk3QE6g/H16jUzBRMB0GA1UdDgQWBBS12BhgxZMXq3QXlKdMR/4wOWK3HzAfBgNV\n"
    "HSMEGDAWgBS12BhgxZMXq3QXlKdMR/4wOWK3HzAPBgNVHRMBAf8EBTADAQH/MAoG\n"
    "CCqGSM49BAMCA0kAMEYCIQC0rz/aD5zjDE9dQc1AesZgKQ233cH0LpFkddjJGT2N\n"
    "mgIhANJLM51eRG8/1je6j/oLjGdyRG25a5n8/khzBgstefhx\n"
    "-----END CERTIFICATE-----\n";

}  // namespace terrace
