# Regressions of causes, counts and ordered categories on completed tables, pooled by R: Rscript outcomes.R tables.csv figures.json
suppressMessages({library(mice); library(survival); library(MASS); library(ordinal); library(cmprsk)})
arguments <- commandArgs(TRUE)
long <- read.csv(arguments[1])
long$g <- factor(long$g)
long$o <- factor(long$o, levels = c("low", "mid", "high"))
tables <- split(long, long$.imp)
pooled <- function(analyse, df) { # analyse: table -> estimates, standard errors
  found <- lapply(tables, analyse)
  k <- length(found[[1]]) / 2
  unlist(lapply(seq_len(k), function(i) {
    q <- sapply(found, `[`, i); u <- sapply(found, `[`, k + i)^2
    p <- pool.scalar(q, u, n = df + 1, k = 1)
    c(p$qbar, sqrt(p$t))
  }))
}
both <- function(fit) c(coef(fit), sqrt(diag(vcov(fit)))[seq_along(coef(fit))])
tight <- coxph.control(eps = 1e-10, toler.chol = 1e-12)
glm_tight <- glm.control(epsilon = 1e-14, maxit = 200)
fine_gray <- function(t, late) {
  t$status <- factor(t$cause, levels = 0:2)
  t$id <- seq_len(nrow(t))
  long <- if (late) finegray(Surv(entry, time, status) ~ ., t, id = id, etype = "1") else finegray(Surv(time, status) ~ ., t, etype = "1")
  both(coxph(Surv(fgstart, fgstop, fgstatus) ~ x + g, long, weights = fgwt, cluster = id, control = tight))
}
first <- tables[[1]]
events <- sum(first$cause == 1)
figures <- list(
  cause = pooled(function(t) both(coxph(Surv(time, cause == 1) ~ x + g, t, control = tight)), events - 3),
  cause_late = pooled(function(t) both(coxph(Surv(entry, time, cause == 2) ~ x + g, t, control = tight)), sum(first$cause == 2) - 3),
  fine_gray = pooled(function(t) fine_gray(t, FALSE), events - 3),
  fine_gray_late = pooled(function(t) fine_gray(t, TRUE), events - 3),
  crr = { # of the first table: another variance, which counts the estimation of the censoring curve
    fit <- crr(first$untied, first$cause, model.matrix(~ x + g, first)[, -1], gtol = 1e-10)
    c(fit$coef, sqrt(diag(fit$var)))
  },
  interval = { # a Weibull regression of intervals: hazards are proportional in it too
    low <- floor(first$untied / 2) * 2
    fit <- survreg(Surv(ifelse(low > 0, low, NA), ifelse(first$cause == 1, low + 2, NA), type = "interval2") ~ x + g, first,
                   subset = low > 0 | cause == 1)
    c(-coef(fit)[-1] / fit$scale, sqrt(diag(vcov(fit)))[2:4] / fit$scale)
  },
  poisson = pooled(function(t) both(glm(y ~ x + g + offset(log(t)), poisson, t, control = glm_tight)), nrow(first) - 4),
  negative_binomial = pooled(function(t) both(glm.nb(y ~ x + g + offset(log(t)), t, control = glm_tight)), nrow(first) - 4),
  theta = mean(sapply(tables, function(t) glm.nb(y ~ x + g + offset(log(t)), t, control = glm_tight)$theta)),
  polr = pooled(function(t) {
    fit <- clm(o ~ x + g, data = t, control = clm.control(gradTol = 1e-12))
    order <- c(3:5, 1:2)
    c(coef(fit)[order], sqrt(diag(vcov(fit)))[order])
  }, nrow(first) - 5),
  polr_of_mass = { # its Hessian is numerical
    fit <- polr(o ~ x + g, first, Hess = TRUE, control = list(reltol = 1e-14, maxit = 1000))
    c(coef(fit), fit$zeta, sqrt(diag(vcov(fit))))
  },
  log_likelihoods = c(
    logLik(glm(y ~ x + g + offset(log(t)), poisson, first, control = glm_tight)),
    logLik(glm.nb(y ~ x + g + offset(log(t)), first, control = glm_tight)),
    logLik(clm(o ~ x + g, data = first, control = clm.control(gradTol = 1e-12)))
  )
)
written <- sapply(figures, function(x) paste0("[", paste(sprintf("%.12g", x), collapse = ", "), "]"))
writeLines(paste0("{\n", paste0(' "', names(written), '": ', written, collapse = ",\n"), "\n}"), arguments[2])
